"""The settings of the registrant: the INI file that sites of SGAS have."""

from __future__ import annotations

import configparser
import difflib
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec

from jobsight.agent.seed_sections import parse_level
from jobsight.errors import ConfigError
from jobsight.export.xml import NAMESPACE

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
