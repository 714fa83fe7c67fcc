"""Sends exported files to services, remembers who has which, and archives what all have.

A file stays until every service has said yes to it. What was sent is noted after the answer, so a
process that is killed between the two sends it again; services know a record by its id.
"""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from xml.etree import ElementTree

import msgspec

from jobsight.export.endpoint import Endpoint, Refused, Unavailable, tls_context
from jobsight.export.registrant_settings import RegistrantSettings

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
