"""Bounces: reports of mail servers about mails that they could not deliver (RFC 3464).

A mail server that accepts every mail and delivers it later says only with such a report that an
address does not exist. `jobsight mail bounce` reads one and leaves what it says in the queue; the
server of jobsight acts on it if it has the signature of the mail that came back.
"""

from __future__ import annotations

from collections.abc import Iterator
from email import message_from_bytes, message_from_string
from email.message import Message
from email.utils import parseaddr
from itertools import islice
from typing import Final

from jobsight.mail.request import Bounce
from jobsight.text import readable_text

#: The header of a mail by which a report about it is recognised: the signature of the recipient.
HEADER: Final = "X-Jobsight-Bounce"
#: Bytes of a report that are read, and parts of it.
MAX_BOUNCE: Final = 1 << 20
_MAX_PARTS: Final = 100
_MAX_VALUE: Final = 320


def read_bounce(data: bytes) -> Bounce:
    """What a message says about a mail of jobsight that failed."""
    try:
        return _read(message_from_bytes(data))
    except (RecursionError, ValueError, LookupError):
        # The parser of the standard library accepts nearly everything; this is what is left.
        return Bounce()


def _read(message: Message) -> Bounce:
    failed: Message | None = None
    original: Message | None = None
    for part in islice(message.walk(), _MAX_PARTS):
        kind = part.get_content_type()
        if kind == "message/delivery-status" and failed is None:
            failed = next(_failures(part), None)
        elif kind in ("message/rfc822", "text/rfc822-headers") and original is None:
            original = _headers(part)
    if failed is None or original is None:
        return Bounce()
    status = _value(failed, "Status")
    said = _value(failed, "Diagnostic-Code").removeprefix("smtp;").strip()
    return Bounce(
        recipient=parseaddr(_value(original, "To"))[1],
        signature=_value(original, HEADER),
        status=status,
        text=said or f"status {status or 'unknown'}",
    )


def _failures(report: Message) -> Iterator[Message]:
    """The recipients that failed for good: a report of a delay is no failure."""
    blocks = report.get_payload()
    if isinstance(blocks, list):
        for block in blocks[:_MAX_PARTS]:
            if isinstance(block, Message) and _value(block, "Action").lower() == "failed":
                yield block


def _headers(part: Message) -> Message | None:
    """The headers of the mail that came back, whole or alone."""
    content = part.get_payload()
    if isinstance(content, list):
        return content[0] if content and isinstance(content[0], Message) else None
    return message_from_string(content) if isinstance(content, str) else None


def _value(message: Message, name: str) -> str:
    return " ".join(readable_text(str(message.get(name, ""))).split())[:_MAX_VALUE]
