"""A mail server for tests."""

from __future__ import annotations

import asyncio
import email
import email.policy
from email.message import EmailMessage
from typing import Any


class Mailbox:
    """A mail server that keeps what it accepts, and refuses what it is told to refuse."""

    def __init__(self) -> None:
        self.received: list[EmailMessage] = []
        self.users: list[str] = []
        self.reply = ""
        #: Every recipient that was named, also those that were refused.
        self.named: list[str] = []
        #: Seconds until a recipient, and until the content of a message, is answered.
        self.slow_command = 0.0
        self.slow_content = 0.0

    async def handle_RCPT(  # noqa: N802
        self, server: Any, session: Any, envelope: Any, address: str, options: list[str]
    ) -> str:
        await asyncio.sleep(self.slow_command)
        self.named.append(address)
        if self.reply:
            return self.reply
        if address.startswith("full"):
            return "452 mailbox full"
        if address.startswith("nobody"):
            return "550 no such user"
        if address.startswith("outside"):
            return "550 5.7.1 relaying denied"
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_MAIL(  # noqa: N802
        self, server: Any, session: Any, envelope: Any, address: str, options: list[str]
    ) -> str:
        if address.startswith("stranger"):
            return "553 not you"
        envelope.mail_from = address
        return "250 OK"

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:  # noqa: N802
        message = email.message_from_bytes(envelope.content, policy=email.policy.default)
        assert isinstance(message, EmailMessage)
        self.received.append(message)
        self.users.append(session.auth_data.login.decode() if session.auth_data else "")
        await asyncio.sleep(self.slow_content)
        return "250 OK"
