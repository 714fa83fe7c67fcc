"""Sends exported files to services, remembers who has which, and archives what all have.

A file stays until every service has said yes to it. What was sent is noted after the answer, so a
process that is killed between the two sends it again; services know a record by its id.

One service that takes records: where it registers them, and the posts themselves.

The settings of the registrant: the INI file that sites of SGAS have.
"""

from __future__ import annotations

import configparser
import difflib
import http.client
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

from jobsight import __version__
from jobsight.errors import ConfigError, JobsightError
from jobsight.export.records import NAMESPACE
from jobsight.sams.settings import parse_level

logger = logging.getLogger("jobsight.export")


class Registered(msgspec.Struct):
    """What a call did."""

    sent: int = 0
    archived: int = 0
    removed: int = 0
    #: Files that at least one service still lacks, and those that are no XML.
    left: int = 0
    unreadable: int = 0


class Registrant:
    """The folder of records and the services that get them."""

    def __init__(
        self, settings: RegistrantSettings, clock: Callable[[], float] = time.time
    ) -> None:
        self._settings = settings
        self._clock = clock
        ElementTree.register_namespace("sa", settings.namespace)

    def run(self) -> Registered:
        """Send what waits, archive what is complete, remove what is old."""
        done = Registered()
        for folder in (self._settings.records, self._settings.state, self._settings.archive):
            folder.mkdir(parents=True, exist_ok=True)
        wanted = self._wanted(done)
        addresses = list(dict.fromkeys(one for places in wanted.values() for one in places))
        if addresses:
            secure = any(address.startswith("https:") for address in addresses)
            context = tls_context(self._settings) if secure else None
            for address in addresses:
                endpoint = Endpoint(address, self._settings, context)
                done.sent += self._send(
                    endpoint, [name for name, places in wanted.items() if address in places]
                )
        for name, places in wanted.items():
            if places <= self._has(name):
                self._archive(name)
                done.archived += 1
            else:
                done.left += 1
        self._forget()
        done.removed = self._remove_old()
        return done

    def _wanted(self, done: Registered) -> dict[str, set[str]]:
        """Which services each file is for."""
        wanted: dict[str, set[str]] = {}
        for file in sorted(self._settings.records.iterdir()):
            # What begins with a dot is not complete yet.
            if file.name.startswith(".") or not file.is_file():
                continue
            try:
                root = ElementTree.parse(file).getroot()
            except (ElementTree.ParseError, OSError) as error:
                logger.warning("%s is left where it is: %s", file, error)
                done.unreadable += 1
                continue
            places = set(self._settings.endpoints)
            if self._settings.endpoints_by_vo:
                by_vo = self._settings.endpoints_by_vo
                places |= {by_vo[name] for name in self._organisations(root) if name in by_vo}
            wanted[file.name] = places
        return wanted

    def _organisations(self, root: ElementTree.Element) -> Iterator[str]:
        space = f"{{{self._settings.namespace}}}"
        for name in root.iterfind(f".//{space}UserIdentity/{space}VO/{space}Name"):
            yield name.text or ""

    def _send(self, endpoint: Endpoint, names: Sequence[str]) -> int:
        """Send to one service what it lacks; its first failure ends its part of this call."""
        lacking = [name for name in names if endpoint.address not in self._has(name)]
        sent = 0
        try:
            place = endpoint.registration() if lacking else ""
            for first in range(0, len(lacking), self._settings.batch_size):
                group = lacking[first : first + self._settings.batch_size]
                try:
                    endpoint.post(place, self._document(group))
                except Refused as error:
                    # The files after these must not wait for them.
                    logger.error("%s; not taken: %s", error, ", ".join(group))
                    continue
                for name in group:
                    self._note(name, endpoint.address)
                sent += len(group)
        except Unavailable as error:
            logger.error("%s; what waits for it is sent next time", error)
        if sent:
            logger.info("%d files registered at %s", sent, endpoint.address)
        return sent

    def _document(self, names: Sequence[str]) -> bytes:
        """Several files in one document, each whole."""
        root = ElementTree.Element(f"{{{self._settings.namespace}}}{self._settings.records_tag}")
        for name in names:
            root.append(ElementTree.parse(self._settings.records / name).getroot())
        document: bytes = ElementTree.tostring(root, "utf-8", xml_declaration=True)
        return document

    def _has(self, name: str) -> set[str]:
        """The services that have said yes to a file."""
        try:
            lines = (self._settings.state / name).read_text().splitlines()
        except FileNotFoundError:
            return set()
        return {line.strip() for line in lines if line.strip()}

    def _note(self, name: str, address: str) -> None:
        addresses = sorted(self._has(name) | {address})
        new = self._settings.state / f".{name}.new"
        with open(new, "w") as file:
            file.write("".join(f"{one}\n" for one in addresses))
            file.flush()
            os.fsync(file.fileno())
        os.rename(new, self._settings.state / name)

    def _archive(self, name: str) -> None:
        """Move a file that all services have; one of that name in the archive stays, too."""
        file, target = self._settings.records / name, self._settings.archive / name
        for number in count(2):
            if not target.exists():
                break
            target = self._settings.archive / f"{name}.{number}"
        # Also where the archive lies on another disk. The state goes last: without it the file
        # would be sent again.
        shutil.move(file, target)
        (self._settings.state / name).unlink(missing_ok=True)

    def _forget(self) -> None:
        """Remove the state of files that are gone."""
        for file in self._settings.state.iterdir():
            if not (self._settings.records / file.name).exists():
                file.unlink()

    def _remove_old(self) -> int:
        removed = 0
        before = self._clock() - self._settings.record_lifetime * 86400
        for file in self._settings.archive.iterdir():
            # The time at which it came into the archive.
            if file.is_file() and file.stat().st_ctime < before:
                file.unlink()
                removed += 1
        return removed


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


SECTIONS: Final = ("common", "logger")

_Count = Annotated[int, msgspec.Meta(ge=1, le=100_000)]
_Days = Annotated[int, msgspec.Meta(ge=0, le=36500)]


class _Keys(msgspec.Struct, kw_only=True):
    """What the file may say, in one of its two sections."""

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
    #: A folder of authorities by their hashes, or a file; the system's where there is none.
    authorities: str | None
    #: Where each record goes, and where those of a virtual organisation go besides.
    endpoints: list[str]
    endpoints_by_vo: dict[str, str]
    batch_size: int
    #: Days.
    record_lifetime: int
    #: Seconds to connect, and between two pieces of an answer.
    connect_timeout: float
    read_timeout: float
    namespace: str
    records_tag: str
    registration_tag: str
    records: Path
    state: Path
    archive: Path
    folder: Path
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
        raise ConfigError(f"{file}: log_all: names no endpoint; right: https://HOST:6143/sgas")
    for address in (*endpoints, *by_vo.values()):
        if not address.startswith(("https://", "http://")):
            raise ConfigError(f"{file}: log_all: {address!r} is no address; right: https://HOST/..")
    connect, read = _timeouts(file, keys.timeout)
    folder = Path(keys.logdir or keys.log_dir)
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
        records=folder / keys.records_directory,
        state=folder / keys.state_directory,
        archive=folder / keys.archive_directory,
        folder=folder,
        logfile=keys.registrant_logfile,
        loglevel=parse_level(f"{file}: loglevel", keys.loglevel),
        warnings=warnings,
    )


def _keys(file: Path, warnings: list[str]) -> _Keys:
    # Addresses may hold a percent sign.
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
    found = {}
    for pair in filter(None, (part.strip() for part in text.split(","))):
        name, _, address = pair.partition(" ")
        if not address.strip():
            raise ConfigError(f"{file}: log_vo: {pair!r} is no pair; right: NAME https://HOST/..")
        found[name] = address.strip()
    return found


def _timeouts(file: Path, text: str) -> tuple[float, float]:
    """Seconds to connect and to read; one that is left out is the usual one."""
    parts = [part.strip() or "10" for part in text.split(",")]
    try:
        connect, read = (float(part) for part in (*parts, parts[-1])[:2])
    except ValueError:
        connect = read = 0.0
    if not (0 < connect <= 86400 and 0 < read <= 86400):
        raise ConfigError(f"{file}: timeout: {text!r} is no pair of seconds; right: 10,10")
    return connect, read
