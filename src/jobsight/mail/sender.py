"""Sends messages by SMTP, with TLS and authentication."""

from __future__ import annotations

import smtplib
import ssl
from email.message import EmailMessage
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from jobsight.config.settings import MailSettings
from jobsight.errors import JobsightError
from jobsight.text import readable_text

#: Messages in one session: some servers limit them.
MAX_MESSAGES: Final = 50
#: Seconds for the answer to the content of a message (RFC 5321, section 4.5.3.2.6). A client that
#: gives up earlier sends a message again that a slow server has accepted.
CONTENT_TIMEOUT: Final = 600.0


class MailUnavailable(JobsightError):
    """The mail server cannot be reached or refuses for now; the message is tried again."""


class MailDeferred(JobsightError):
    """The mail server refuses this message for now; others may be accepted."""


class MailRejected(JobsightError):
    """The mail server refuses this message for good."""


class RecipientRejected(MailRejected):
    """The mail server refuses the recipient, and so every message to it."""


class _Session(smtplib.SMTP):
    """A session that waits longer for the answer to the content than for that to a command."""

    def data(self, msg: Any) -> tuple[int, bytes]:
        try:
            return super().data(msg)
        finally:
            if self.sock is not None:
                self.sock.settimeout(self.timeout)

    def send(self, s: Any) -> None:
        super().send(s)
        # A command is passed as text; only the content is bytes.
        if isinstance(s, bytes) and s.endswith(b"\r\n.\r\n") and self.sock is not None:
            self.sock.settimeout(CONTENT_TIMEOUT)


class _EncryptedSession(_Session, smtplib.SMTP_SSL):
    """The same, encrypted from the beginning."""


class Sender:
    """One session with the mail server, opened at the first message."""

    def __init__(self, settings: MailSettings) -> None:
        self._settings = settings
        self._session: _Session | None = None
        self._sent = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def send(self, message: EmailMessage, to: str) -> None:
        """Send a message, or raise one of the errors above.

        What a server says of a recipient or of the content concerns this message; anything else,
        such as a refused sender, concerns all of them.
        """
        try:
            session = self._open()
            session.send_message(message, self._settings.bounces or self._settings.sender, [to])
        except smtplib.SMTPRecipientsRefused as error:
            code, reason = next(iter(error.recipients.values()))
            self._reset()
            raise self._refused(code, reason, of_recipient=True) from None
        except smtplib.SMTPAuthenticationError as error:
            self.close()
            answer = _text(error.smtp_error)
            raise MailUnavailable(
                f"{self._where()} does not accept the user or the password: {answer}"
            ) from None
        except smtplib.SMTPDataError as error:
            self._reset()
            raise self._refused(error.smtp_code, error.smtp_error) from None
        except smtplib.SMTPResponseException as error:
            self.close()
            raise MailUnavailable(
                f"{self._where()} answered {error.smtp_code} {_text(error.smtp_error)}"
            ) from None
        except (smtplib.SMTPException, OSError, ssl.SSLError) as error:
            self.close()
            raise MailUnavailable(f"{self._where()}: {_text(str(error))}") from None
        self._sent += 1

    def close(self) -> None:
        session, self._session, self._sent = self._session, None, 0
        if session is not None:
            try:
                session.quit()
            except (smtplib.SMTPException, OSError):
                session.close()

    def _open(self) -> _Session:
        if self._sent >= MAX_MESSAGES:
            self.close()
        if self._session is not None:
            return self._session
        settings = self._settings
        context = ssl.create_default_context(cafile=settings.certificates or None)
        if settings.tls == "tls":
            session: _Session = _EncryptedSession(
                settings.host, settings.port, timeout=settings.timeout, context=context
            )
        else:
            session = _Session(settings.host, settings.port, timeout=settings.timeout)
        self._session = session
        if settings.tls == "starttls":
            session.starttls(context=context)
        if settings.user:
            session.login(settings.user, _password(settings.password_file))
        return session

    def _reset(self) -> None:
        """Make the session usable for the next message; one that is broken is closed."""
        try:
            if self._session is not None:
                self._session.rset()
        except (smtplib.SMTPException, OSError):
            self.close()

    def _refused(
        self, code: int, reason: bytes | str, *, of_recipient: bool = False
    ) -> JobsightError:
        answer = _text(reason)
        text = f"{self._where()} answered {code} {answer}"
        # 421: the server closes the connection.
        if code == 421:
            return MailUnavailable(text)
        if not 500 <= code < 600:
            return MailDeferred(text)
        if of_recipient and not is_policy(answer.partition(" ")[0]):
            return RecipientRejected(text)
        return MailRejected(text)

    def _where(self) -> str:
        return f"the mail server {self._settings.host}:{self._settings.port}"


def is_policy(status: str) -> bool:
    """Whether an enhanced status code (RFC 3463) is about a rule of the mail server, such as who
    may send, and not about the address."""
    return status.startswith("5.7.")


def _password(file: str | None) -> str:
    if not file:
        return ""
    try:
        return Path(file).expanduser().read_text().strip()
    except OSError as error:
        raise MailUnavailable(f"mail.password_file {file}: {error.strerror}") from None


def _text(reason: bytes | str) -> str:
    text = reason.decode(errors="replace") if isinstance(reason, bytes) else reason
    return " ".join(readable_text(text).split())[:300]
