"""One service that takes records: where it registers them, and the posts themselves."""

from __future__ import annotations

import http.client
import os
import ssl
import time
from typing import Final
from urllib.parse import urljoin, urlsplit
from xml.etree import ElementTree

from jobsight import __version__
from jobsight.errors import ConfigError, JobsightError
from jobsight.export.registrant_settings import RegistrantSettings

#: Bytes of an answer that are read; nobody needs more of a list of services.
_LARGEST_ANSWER: Final = 1 << 20
#: An answer that comes byte by byte is given up after so many times of reading.
_PATIENCE: Final = 6


class Unavailable(JobsightError):
    """The service does not answer, or not now: later is as good."""


class Refused(JobsightError):
    """The service does not take this; another record may be better."""


def tls_context(settings: RegistrantSettings) -> ssl.SSLContext:
    """The client's certificate, and the authorities that the service's must come from."""
    for name, file in (("x509_user_cert", settings.certificate), ("x509_user_key", settings.key)):
        if not os.access(file, os.R_OK):
            raise ConfigError(f"{name}: {file} cannot be read")
    trusted = settings.authorities
    if trusted is not None and not os.path.exists(trusted):
        raise ConfigError(f"x509_cert_dir: {trusted} is not there")
    folder = trusted if trusted is not None and os.path.isdir(trusted) else None
    try:
        context = ssl.create_default_context(
            capath=folder, cafile=None if folder is not None else trusted
        )
        context.load_cert_chain(settings.certificate, settings.key)
    except (ssl.SSLError, OSError) as error:
        raise ConfigError(
            f"x509_user_cert: {settings.certificate} and {settings.key} cannot be used: {error}"
        ) from None
    return context


class Endpoint:
    """A service by its address."""

    def __init__(
        self, address: str, settings: RegistrantSettings, context: ssl.SSLContext | None
    ) -> None:
        self.address = address
        self._settings = settings
        self._context = context

    def registration(self) -> str:
        """The address that takes records, as the service lists it."""
        answer = self._ask("GET", self.address)
        try:
            services = ElementTree.fromstring(answer)
        except ElementTree.ParseError as error:
            raise Unavailable(f"{self.address}: the list of services is no XML: {error}") from None
        for service in services.iter("service"):
            if (service.findtext("name") or "").strip() == self._settings.registration_tag:
                place = urljoin(self.address, (service.findtext("href") or "").strip())
                # Nothing is sent in the clear that was asked for in secret.
                if urlsplit(place).scheme in ("https", urlsplit(self.address).scheme):
                    return place
        raise Unavailable(
            f"{self.address}: lists no service named {self._settings.registration_tag}"
        )

    def post(self, place: str, document: bytes) -> None:
        """Register a document; anything but 200 is an error."""
        self._ask("POST", place, document)

    def _ask(self, method: str, address: str, document: bytes | None = None) -> bytes:
        connection = self._connection(address)
        parts = urlsplit(address)
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        headers = {"User-Agent": f"jobsight {__version__}"}
        if document is not None:
            headers["Content-Type"] = "application/xml"
        try:
            connection.connect()
            # One time to connect, another for each piece of the answer.
            connection.sock.settimeout(self._settings.read_timeout)
            connection.request(method, path, document, headers)
            response = connection.getresponse()
            answer = self._read(response, address)
        except (OSError, http.client.HTTPException) as error:
            raise Unavailable(f"{address}: {_reason(error)}") from None
        finally:
            connection.close()
        if response.status == 200:
            return answer
        said = f"{address}: answers {response.status} {response.reason}"
        # These say something about the moment or our papers, not about the record.
        later = response.status in (401, 403, 404, 407, 408, 425, 429) or response.status < 400
        raise Unavailable(said) if later or response.status >= 500 else Refused(said)

    def _connection(self, address: str) -> http.client.HTTPConnection:
        parts = urlsplit(address)
        host, wait = parts.hostname or "", self._settings.connect_timeout
        if parts.scheme == "https":
            return http.client.HTTPSConnection(
                host, parts.port, timeout=wait, context=self._context
            )
        return http.client.HTTPConnection(host, parts.port, timeout=wait)

    def _read(self, response: http.client.HTTPResponse, address: str) -> bytes:
        end = time.monotonic() + _PATIENCE * self._settings.read_timeout
        answer = b""
        while len(answer) < _LARGEST_ANSWER:
            piece = response.read1(65536)
            if not piece:
                break
            answer += piece
            if time.monotonic() > end:
                raise Unavailable(f"{address}: the answer comes too slowly")
        return answer


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate is not accepted: {error.verify_message}"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__
