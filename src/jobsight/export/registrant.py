"""Registration of exported files at accounting services (SGAS).

:class:`Registrant` sends each file to every service it is for and archives it once all services
have accepted it. Acceptance is stored after the reply, so a process killed in between sends the
file again; services identify a record by its id. :class:`Endpoint` is one service, and
:func:`load_registrant` reads the INI file of SGAS sites.
"""

from __future__ import annotations

import configparser
import difflib
import logging
import os
import shutil
import ssl
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import urljoin, urlsplit
from xml.etree import ElementTree

import msgspec

from jobsight.errors import ConfigError, JobsightError
from jobsight.export.usage_records import NAMESPACE
from jobsight.transport.client import Address, HttpClient, HttpError, tls_context
from jobsight.util.batching import batched
from jobsight.util.durable import write_atomically
from jobsight.util.logging import parse_level
from jobsight.util.urls import without_credentials

logger = logging.getLogger(__name__)

#: Bytes of a reply; a list of services is much smaller.
_MAX_REPLY_SIZE: Final = 1 << 20
#: Statuses that concern the time or the credentials, not the record.
_TEMPORARY_STATUSES: Final = frozenset((401, 403, 404, 407, 408, 425, 429))


class Registered(msgspec.Struct):
    """The result of a call, in files."""

    sent: int = 0
    archived: int = 0
    removed: int = 0
    #: Files that at least one service has not accepted, and files that are not XML.
    left: int = 0
    unreadable: int = 0


class Registrant:
    """A directory of records and the services that receive them."""

    def __init__(
        self, settings: RegistrantSettings, clock: Callable[[], float] = time.time
    ) -> None:
        self._settings = settings
        self._clock = clock
        ElementTree.register_namespace("sa", settings.namespace)

    def run(self) -> Registered:
        """Send waiting files, archive the accepted ones, and remove old ones."""
        done = Registered()
        for directory in (self._settings.records, self._settings.state, self._settings.archive):
            directory.mkdir(parents=True, exist_ok=True)
        recipients = self._recipients(done)
        urls = list(dict.fromkeys(url for services in recipients.values() for url in services))
        secure = any(url.startswith("https:") for url in urls)
        context = _tls_context(self._settings) if secure else None
        for url in urls:
            names = [name for name, services in recipients.items() if url in services]
            done.sent += self._send(Endpoint(url, self._settings, context), names)
        for name, services in recipients.items():
            if services <= self._accepted(name):
                self._archive(name)
                done.archived += 1
            else:
                done.left += 1
        self._remove_stale_state()
        done.removed = self._remove_old()
        return done

    def _recipients(self, done: Registered) -> dict[str, set[str]]:
        """The services of each file."""
        recipients: dict[str, set[str]] = {}
        for file in sorted(self._settings.records.iterdir()):
            # A name that begins with a dot is incomplete.
            if file.name.startswith(".") or not file.is_file():
                continue
            try:
                root = ElementTree.parse(file).getroot()
            except (ElementTree.ParseError, OSError) as error:
                logger.warning("%s is not sent: %s", file, error)
                done.unreadable += 1
                continue
            services = set(self._settings.endpoints)
            by_vo = self._settings.endpoints_by_vo
            if by_vo:
                services |= {by_vo[name] for name in self._organisations(root) if name in by_vo}
            recipients[file.name] = services
        return recipients

    def _organisations(self, root: ElementTree.Element) -> Iterator[str]:
        space = f"{{{self._settings.namespace}}}"
        for name in root.iterfind(f".//{space}UserIdentity/{space}VO/{space}Name"):
            yield name.text or ""

    def _send(self, endpoint: Endpoint, names: Sequence[str]) -> int:
        """Send the missing files to one service, until its first failure."""
        missing = [name for name in names if endpoint.url not in self._accepted(name)]
        sent = 0
        try:
            target = endpoint.registration_url() if missing else ""
            for group in batched(missing, self._settings.batch_size):
                try:
                    endpoint.post(target, self._document(group))
                except Refused as error:
                    # One refused file must not hold up the others.
                    logger.error("%s; not accepted: %s", error, ", ".join(group))
                    continue
                for name in group:
                    self._record_acceptance(name, endpoint.url)
                sent += len(group)
        except Unavailable as error:
            logger.error("%s; the rest is sent next time", error)
        finally:
            endpoint.close()
        if sent:
            logger.info("%d files registered at %s", sent, endpoint.shown)
        return sent

    def _document(self, names: Sequence[str]) -> bytes:
        """Several files in one XML document."""
        root = ElementTree.Element(f"{{{self._settings.namespace}}}{self._settings.records_tag}")
        for name in names:
            root.append(ElementTree.parse(self._settings.records / name).getroot())
        document: bytes = ElementTree.tostring(root, "utf-8", xml_declaration=True)
        return document

    def _accepted(self, name: str) -> set[str]:
        """The URLs of the services that have accepted a file."""
        try:
            lines = (self._settings.state / name).read_text().splitlines()
        except FileNotFoundError:
            return set()
        return {line.strip() for line in lines if line.strip()}

    def _record_acceptance(self, name: str, url: str) -> None:
        lines = "".join(f"{each}\n" for each in sorted(self._accepted(name) | {url}))
        write_atomically(self._settings.state / name, lines.encode())

    def _archive(self, name: str) -> None:
        """Move a file to the archive without replacing one of the same name."""
        file, target = self._settings.records / name, self._settings.archive / name
        for number in count(2):
            if not target.exists():
                break
            target = self._settings.archive / f"{name}.{number}"
        # The archive may be on another disk. The state is removed last: without it, a killed
        # process would send the file again.
        shutil.move(file, target)
        (self._settings.state / name).unlink(missing_ok=True)

    def _remove_stale_state(self) -> None:
        for file in self._settings.state.iterdir():
            if not (self._settings.records / file.name).exists():
                file.unlink()

    def _remove_old(self) -> int:
        removed = 0
        before = self._clock() - self._settings.record_lifetime * 86400
        for file in self._settings.archive.iterdir():
            # The change time is when the file was moved to the archive.
            if file.is_file() and file.stat().st_ctime < before:
                file.unlink()
                removed += 1
        return removed


class Unavailable(JobsightError):
    """The service does not answer, or not now: the same request may succeed later."""


class Refused(JobsightError):
    """The service does not accept this document; it may accept others."""


class Endpoint:
    """One accounting service."""

    def __init__(
        self, url: str, settings: RegistrantSettings, context: ssl.SSLContext | None
    ) -> None:
        self.url = url
        self._registration_tag = settings.registration_tag
        address = Address.parse("log_all", url, expected="https://HOST/..")
        #: For messages: without credentials.
        self.shown = address.shown
        self._client = HttpClient(
            address,
            timeout=settings.read_timeout,
            connect_timeout=settings.connect_timeout,
            tls=context,
        )

    def registration_url(self) -> str:
        """The URL for records, from the service's list."""
        body = self._request("GET", self.url)
        try:
            services = ElementTree.fromstring(body)
        except ElementTree.ParseError as error:
            raise Unavailable(f"{self.shown}: the list of services is not XML: {error}") from None
        for service in services.iter("service"):
            if (service.findtext("name") or "").strip() == self._registration_tag:
                target = urljoin(self.url, (service.findtext("href") or "").strip())
                # Records do not leave an encrypted connection.
                if urlsplit(target).scheme in ("https", urlsplit(self.url).scheme):
                    return target
        raise Unavailable(f"{self.shown}: lists no service named {self._registration_tag}")

    def post(self, target: str, document: bytes) -> None:
        """Register a document."""
        self._request("POST", target, document)

    def close(self) -> None:
        self._client.close()

    def _request(self, method: str, target: str, document: bytes | None = None) -> bytes:
        headers = {} if document is None else {"Content-Type": "application/xml"}
        try:
            reply = self._client.request(
                method, target, content=document, headers=headers, max_size=_MAX_REPLY_SIZE
            )
        except HttpError as error:
            raise Unavailable(f"{self.shown}: {error}") from None
        if reply.status == 200:
            return reply.body
        sentence = f"{self.shown}: answers {reply.status} {reply.phrase}"
        if reply.status in _TEMPORARY_STATUSES or not 400 <= reply.status < 500:
            raise Unavailable(sentence)
        raise Refused(sentence)


def _tls_context(settings: RegistrantSettings) -> ssl.SSLContext:
    for name, file in (("x509_user_cert", settings.certificate), ("x509_user_key", settings.key)):
        if not os.access(file, os.R_OK):
            raise ConfigError(f"{name}: {file} cannot be read")
    if settings.authorities is not None and not os.path.exists(settings.authorities):
        raise ConfigError(f"x509_cert_dir: {settings.authorities} does not exist")
    return tls_context(settings.authorities, settings.certificate, settings.key)


SECTIONS: Final = ("common", "logger")

_Count = Annotated[int, msgspec.Meta(ge=1, le=100_000)]
_Days = Annotated[int, msgspec.Meta(ge=0, le=36500)]


class _Keys(msgspec.Struct, kw_only=True):
    """The keys of the file, in either of its two sections."""

    x509_user_key: str = "/etc/grid-security/hostkey.pem"
    x509_user_cert: str = "/etc/grid-security/hostcert.pem"
    x509_cert_dir: str | None = None
    log_dir: str = "/var/spool/softwareaccounting/"
    logdir: str | None = None
    log_all: str = ""
    log_vo: str = ""
    batch_size: _Count = 1
    record_lifetime: _Days = 30
    timeout: str = "10,10"
    registrant_logfile: str = "/var/log/sgas-sa-registration.log"
    loglevel: str = "INFO"
    stderr_level: str | None = None
    namespace: str = NAMESPACE
    records_tag: str = "SoftwareAccountingRecords"
    registration_tag: str = "SoftwareAccountingRegistration"
    records_directory: str = "records"
    state_directory: str = "state"
    archive_directory: str = "archive"


class RegistrantSettings(msgspec.Struct, kw_only=True):
    certificate: str
    key: str
    #: A file or a hashed directory of CA certificates; the system's if None.
    authorities: str | None
    #: URLs for all records, and additional ones for those of a virtual organisation.
    endpoints: list[str]
    endpoints_by_vo: dict[str, str]
    batch_size: int
    #: Days.
    record_lifetime: int
    #: Seconds to connect, and for each read.
    connect_timeout: float
    read_timeout: float
    namespace: str
    records_tag: str
    registration_tag: str
    records: Path
    state: Path
    archive: Path
    directory: Path
    logfile: str
    loglevel: str
    warnings: list[str]


def load_registrant(file: Path) -> RegistrantSettings:
    """Read a site's file; an unknown key is a warning, a wrong value is an error."""
    warnings: list[str] = []
    keys = _keys(file, warnings)
    endpoints = keys.log_all.split()
    by_vo = _by_vo(file, keys.log_vo)
    if not endpoints:
        raise ConfigError(f"{file}: log_all: no endpoint; expected https://HOST:6143/sgas")
    for url in (*endpoints, *by_vo.values()):
        if not url.startswith(("https://", "http://")):
            raise ConfigError(
                f"{file}: log_all: {without_credentials(url)!r} is not an address; "
                "expected https://HOST/.."
            )
    connect, read = _timeouts(file, keys.timeout)
    directory = Path(keys.logdir or keys.log_dir)
    return RegistrantSettings(
        certificate=keys.x509_user_cert,
        key=keys.x509_user_key,
        authorities=keys.x509_cert_dir,
        endpoints=list(dict.fromkeys(endpoints)),
        endpoints_by_vo=by_vo,
        batch_size=keys.batch_size,
        record_lifetime=keys.record_lifetime,
        connect_timeout=connect,
        read_timeout=read,
        namespace=keys.namespace,
        records_tag=keys.records_tag,
        registration_tag=keys.registration_tag,
        records=directory / keys.records_directory,
        state=directory / keys.state_directory,
        archive=directory / keys.archive_directory,
        directory=directory,
        logfile=keys.registrant_logfile,
        loglevel=parse_level(f"{file}: loglevel", keys.loglevel),
        warnings=warnings,
    )


def _keys(file: Path, warnings: list[str]) -> _Keys:
    # URLs may contain a percent sign.
    parser = configparser.ConfigParser(interpolation=None)
    try:
        parser.read_string(file.read_text())
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from None
    except (configparser.Error, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: {' '.join(str(error).split())}") from None
    known = {field.name: field.type for field in msgspec.structs.fields(_Keys)}
    values: dict[str, Any] = {}
    for section in parser.sections():
        if section not in SECTIONS:
            warnings.append(f"{file}: [{section}]: unknown section; known: {', '.join(SECTIONS)}")
            continue
        for key, text in parser.items(section):
            if key not in known:
                near = difflib.get_close_matches(key, known, n=1)
                hint = f"; did you mean {near[0]}?" if near else ""
                warnings.append(f"{file}: [{section}] {key}: unknown key{hint}")
                continue
            values[key] = _value(f"{file}: [{section}] {key}", text, known[key])
    return _Keys(**values)


def _value(where: str, text: str, wanted: Any) -> Any:
    text = text.strip().replace('"', "").replace("'", "")
    try:
        return msgspec.convert(text, wanted, strict=False)
    except msgspec.ValidationError as error:
        reason = str(error)
        raise ConfigError(f"{where}: {reason[:1].lower()}{reason[1:]}, got {text!r}") from None


def _by_vo(file: Path, text: str) -> dict[str, str]:
    urls = {}
    for pair in filter(None, (part.strip() for part in text.split(","))):
        name, _, url = pair.partition(" ")
        if not url.strip():
            raise ConfigError(
                f"{file}: log_vo: {pair!r} is not a pair; expected NAME https://HOST/.."
            )
        urls[name] = url.strip()
    return urls


def _timeouts(file: Path, text: str) -> tuple[float, float]:
    """Seconds to connect and to read; an empty value means 10."""
    parts = [part.strip() or "10" for part in text.split(",")]
    try:
        connect, read = (float(part) for part in (*parts, parts[-1])[:2])
    except ValueError:
        connect = read = 0.0
    if not (0 < connect <= 86400 and 0 < read <= 86400):
        raise ConfigError(f"{file}: timeout: {text!r} is not a pair of seconds; expected 10,10")
    return connect, read
