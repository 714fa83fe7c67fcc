"""A small certificate authority for sites that have none: server and node certificates, and a
revocation list.

An :class:`Authority` is a directory: ``ca.pem`` and ``ca.key``, ``issued.json`` with what was
issued, ``crl.pem`` with what was revoked, and a pair of files for each name in ``issued/``. Keys
are of the type P-256 (ECDSA). The key of the authority never leaves the directory; the server needs
``ca.pem`` and ``crl.pem``, a node ``ca.pem`` and its own pair.
"""

from __future__ import annotations

import fcntl
import ipaddress
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, Literal

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from jobsight.errors import JobsightError
from jobsight.util.durable import write_atomically

#: Days of the authority's certificate, and of those that it issues: 825 is the most that current
#: systems accept of a server.
AUTHORITY_DAYS: Final = 3650
CERTIFICATE_DAYS: Final = 825
#: Clocks of nodes may be behind: a certificate is valid from a little earlier.
_BACKDATED: Final = timedelta(hours=1)
_NAME: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,62}[A-Za-z0-9])?")

Kind = Literal["server", "node"]


class CaError(JobsightError):
    """The authority cannot do what was requested."""


class Issued(msgspec.Struct, kw_only=True):
    """A certificate that was issued. Times are seconds since 1970."""

    serial: str
    name: str
    kind: Kind
    #: Host names and addresses that it is valid for.
    hosts: tuple[str, ...]
    created: int
    ends: int
    revoked: int | None = None

    def state(self, now: float) -> str:
        return "revoked" if self.revoked is not None else "ended" if self.ends < now else "valid"


class Authority:
    """An authority in a directory."""

    def __init__(
        self, directory: Path, clock: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        self.directory = directory
        self.certificate_file = directory / "ca.pem"
        self.key_file = directory / "ca.key"
        self.crl_file = directory / "crl.pem"
        self._list_file = directory / "issued.json"
        self._clock = clock

    @property
    def exists(self) -> bool:
        return self.certificate_file.exists() and self.key_file.exists()

    def create(self, name: str, days: int = AUTHORITY_DAYS) -> None:
        """Make the key and certificate of the authority; an existing one is never replaced."""
        try:
            # The server, which is not root, reads ca.pem and crl.pem; keys have their own mode.
            self.directory.mkdir(mode=0o755, parents=True, exist_ok=True)
            (self.directory / "issued").mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise CaError(f"{self.directory} cannot be created: {error.strerror}") from None
        with self._locked():
            if self.certificate_file.exists() or self.key_file.exists():
                raise CaError(f"there is an authority in {self.directory}; it is not replaced")
            key = ec.generate_private_key(ec.SECP256R1())
            subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
            now = self._clock()
            certificate = (
                x509.CertificateBuilder()
                .subject_name(subject)
                .issuer_name(subject)
                .public_key(key.public_key())
                .serial_number(x509.random_serial_number())
                .not_valid_before(now - _BACKDATED)
                .not_valid_after(now + timedelta(days=days))
                .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
                .add_extension(_key_usage(authority=True), critical=True)
                .add_extension(
                    x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False
                )
                .sign(key, hashes.SHA256())
            )
            _write(self.key_file, _key_bytes(key), 0o600)
            _write(self.certificate_file, _pem(certificate), 0o644)
            self._write_list([])
            self._write_crl(key, certificate, [])

    def issue(
        self, name: str, kind: Kind, hosts: Sequence[str] = (), days: int = CERTIFICATE_DAYS
    ) -> Issued:
        """Make a key and a certificate; the files are ``issued/NAME.pem`` and ``.key``."""
        if not _NAME.fullmatch(name):
            raise CaError(
                f"{name!r} is not a name for a certificate; expected a host name such as "
                "node1.example.org"
            )
        with self._locked():
            issued = self.issued()
            now = int(self._clock().timestamp())
            if any(each.name == name and each.state(now) == "valid" for each in issued):
                raise CaError(
                    f"{name} has a valid certificate; `jobsight ca renew {name}` makes a new one"
                )
            return self._issue(name, kind, hosts or (name,), days, issued)

    def renew(self, name: str, days: int = CERTIFICATE_DAYS) -> Issued:
        """A new key and certificate with the names of the last one, which stays valid."""
        with self._locked():
            issued = self.issued()
            last = next((each for each in reversed(issued) if each.name == name), None)
            if last is None:
                raise self._unknown(name, issued)
            return self._issue(name, last.kind, last.hosts, days, issued)

    def revoke(self, name: str) -> list[Issued]:
        """Revoke a certificate by its serial, or all of a name; the revocation list is written."""
        with self._locked():
            issued = self.issued()
            found = [each for each in issued if name in (each.name, each.serial)]
            if not found:
                raise self._unknown(name, issued)
            now = int(self._clock().timestamp())
            for each in found:
                each.revoked = each.revoked or now
            key, certificate = self._load()
            self._write_crl(key, certificate, issued)
            self._write_list(issued)
            return found

    def issued(self) -> list[Issued]:
        """What was issued, the oldest first."""
        try:
            return msgspec.json.decode(self._list_file.read_bytes(), type=list[Issued])
        except FileNotFoundError:
            raise CaError(
                f"there is no authority in {self.directory}; `jobsight ca create` makes one"
            ) from None
        except PermissionError:
            raise CaError(f"{self.directory} cannot be read; run this as its owner") from None
        except (OSError, msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            raise CaError(f"{self._list_file} cannot be read: {error}") from None

    def files(self, name: str) -> tuple[Path, Path]:
        """The certificate and the key of a name."""
        place = self.directory / "issued"
        return place / f"{name}.pem", place / f"{name}.key"

    def _issue(
        self, name: str, kind: Kind, hosts: Sequence[str], days: int, issued: list[Issued]
    ) -> Issued:
        authority_key, authority = self._load()
        now = self._clock()
        ends = min(now + timedelta(days=days), authority.not_valid_after_utc)
        if ends <= now:
            raise CaError(
                f"the authority ended on {authority.not_valid_after_utc:%Y-%m-%d}; make a new one "
                "in another directory"
            )
        key = ec.generate_private_key(ec.SECP256R1())
        usage = {
            "server": [ExtendedKeyUsageOID.SERVER_AUTH],
            "node": [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH],
        }[kind]
        serial = x509.random_serial_number()
        certificate = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
            .issuer_name(authority.subject)
            .public_key(key.public_key())
            .serial_number(serial)
            .not_valid_before(now - _BACKDATED)
            .not_valid_after(ends)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(authority=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usage), critical=False)
            .add_extension(
                x509.SubjectAlternativeName([_host(each) for each in hosts]), critical=False
            )
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()),
                critical=False,
            )
            .sign(authority_key, hashes.SHA256())
        )
        record = Issued(
            serial=f"{serial:x}",
            name=name,
            kind=kind,
            hosts=tuple(hosts),
            created=int(now.timestamp()),
            ends=int(ends.timestamp()),
        )
        # The list first: a certificate that is not in it could not be revoked.
        self._write_list([*issued, record])
        certificate_file, key_file = self.files(name)
        _write(key_file, _key_bytes(key), 0o600)
        _write(certificate_file, _pem(certificate), 0o644)
        return record

    def _load(self) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
        try:
            key = serialization.load_pem_private_key(self.key_file.read_bytes(), None)
            certificate = x509.load_pem_x509_certificate(self.certificate_file.read_bytes())
        except OSError as error:
            raise CaError(f"{error.filename} cannot be read: {error.strerror}") from None
        except (ValueError, TypeError):
            raise CaError(f"{self.directory} holds no key and certificate (PEM)") from None
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise CaError(f"{self.key_file}: expected an EC key, as `jobsight ca create` makes it")
        return key, certificate

    def _write_crl(
        self,
        key: ec.EllipticCurvePrivateKey,
        certificate: x509.Certificate,
        issued: Sequence[Issued],
    ) -> None:
        updated = self._clock() - _BACKDATED
        if self.crl_file.exists():
            # A server that has the list before takes this one only if it is newer, in seconds.
            before = x509.load_pem_x509_crl(self.crl_file.read_bytes())
            updated = max(updated, before.last_update_utc + timedelta(seconds=1))
        builder = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(certificate.subject)
            .last_update(updated)
            # As long as the authority: with a list that has ended, TLS refuses every node.
            .next_update(certificate.not_valid_after_utc)
        )
        for each in issued:
            if each.revoked is not None:
                builder = builder.add_revoked_certificate(
                    x509.RevokedCertificateBuilder()
                    .serial_number(int(each.serial, 16))
                    .revocation_date(datetime.fromtimestamp(each.revoked, UTC))
                    .build()
                )
        revoked = builder.sign(key, hashes.SHA256())
        _write(self.crl_file, revoked.public_bytes(serialization.Encoding.PEM), 0o644)

    def _write_list(self, issued: Sequence[Issued]) -> None:
        data = msgspec.json.format(msgspec.json.encode(issued), indent=1)
        _write(self._list_file, data + b"\n", 0o600)

    def _unknown(self, name: str, issued: Sequence[Issued]) -> CaError:
        import difflib

        near = difflib.get_close_matches(name, {each.name for each in issued}, n=1)
        hint = f"did you mean {near[0]}?" if near else "`jobsight ca list` shows all"
        return CaError(f"no certificate of {name!r} was issued; {hint}")

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Two commands at once must not lose an entry of the list."""
        try:
            descriptor = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            if isinstance(error, FileNotFoundError):
                self.issued()
            raise CaError(f"{self.directory} cannot be read: {error.strerror}") from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def fingerprint(file: Path) -> str:
    """The SHA-256 fingerprint of a certificate, as openssl shows it."""
    digest = x509.load_pem_x509_certificate(file.read_bytes()).fingerprint(hashes.SHA256())
    return ":".join(f"{byte:02X}" for byte in digest)


def _host(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        pass
    if not _NAME.fullmatch(text.removeprefix("*.")):
        raise CaError(f"{text!r} is neither a host name nor an address")
    try:
        return x509.DNSName(text)
    except ValueError:
        raise CaError(f"{text!r} is neither a host name nor an address") from None


def _key_usage(*, authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not authority,
        key_cert_sign=authority,
        crl_sign=authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_bytes(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _write(file: Path, data: bytes, mode: int) -> None:
    try:
        write_atomically(file, data, mode=mode)
    except OSError as error:
        raise CaError(f"{file} cannot be written: {error.strerror}") from None
