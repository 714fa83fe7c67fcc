"""The usage record of a run: its software by share of CPU time, and the XML of SAMS for SGAS."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, tzinfo
from typing import Final, NamedTuple
from xml.sax.saxutils import escape, quoteattr

import msgspec

from jobsight.model import SECOND
from jobsight.software.rule_file import fill_run
from jobsight.software.rules import SoftwareName
from jobsight.store.rollups.shares import UNDETERMINED
from jobsight.store.write.exports import ExportedRun
from jobsight.text import readable_text

UNDETERMINED_NAME: Final = "undetermined"


class ReportedSoftware(NamedTuple):
    name: str
    version: str
    local_version: str
    user_provided: bool
    #: Percent of the run's CPU time, with two decimals.
    usage: str


class UsageRecord(msgspec.Struct, frozen=True):
    id: str
    software: list[ReportedSoftware]

    def digest(self) -> bytes:
        """Differs for every different content."""
        return hashlib.blake2b(msgspec.msgpack.encode(self), digest_size=16).digest()


class RecordBuilder(msgspec.Struct, kw_only=True):
    """Builds the records of runs; the fields are settings of the export."""

    names: Mapping[int, SoftwareName]
    remove_less_then: float = 1.0
    record_name: str | None = None
    zone: tzinfo | None = None
    undetermined: bool = False

    def build(self, run: ExportedRun) -> UsageRecord:
        """The record of a run; without software if there is nothing to report."""
        used = self._by_name(run)
        threshold = self.remove_less_then * sum(used.values())
        kept = {key: cpu for key, cpu in used.items() if 100 * cpu >= threshold}
        # A run of many programs, each below the threshold, is reported nevertheless.
        kept = {key: cpu for key, cpu in (kept or used).items() if cpu}
        total = sum(kept.values())
        software = [
            ReportedSoftware(*key, f"{100 * cpu / total:.2f}") for key, cpu in sorted(kept.items())
        ]
        return UsageRecord(self._id(run), software)

    def _by_name(self, run: ExportedRun) -> dict[tuple[str, str, str, bool], int]:
        used: dict[tuple[str, str, str, bool], int] = {}
        for software_id, cpu in run.cpu_time.items():
            name = self._name(software_id)
            if name is None or name.ignored:
                continue
            texts = (name.software, name.version, name.local_version)
            first, second, third = (
                readable_text(fill_run(text, run.user, run.account)) if "%(" in text else text
                for text in texts
            )
            key = (first, second, third, name.user_provided)
            used[key] = used.get(key, 0) + cpu
        return used

    def _name(self, software_id: int) -> SoftwareName | None:
        if software_id == UNDETERMINED and self.undetermined:
            return SoftwareName(UNDETERMINED_NAME, "", "")
        return self.names.get(software_id)

    def _id(self, run: ExportedRun) -> str:
        """In the format of the job accounting, so that both records of a job can be joined."""
        begin = f"{readable_text(self.record_name or run.cluster)}:{run.job_id}"
        if run.start is None:
            return begin
        start = datetime.fromtimestamp(run.start // SECOND, self.zone)
        return f"{begin}:{start:%Y%m%d%H%M%S}"


NAMESPACE: Final = "http://sams.snic.se/namespaces/2019/01/softwareaccountingrecords"


def to_xml(records: Iterable[UsageRecord], created: float) -> bytes:
    """One XML document; ``created`` is in seconds since 1970."""
    lines = [
        '<?xml version="1.0" encoding="UTF-8"?>',
        f'<sa:SoftwareAccountingRecords xmlns:sa="{NAMESPACE}">',
    ]
    moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(created))
    for record in records:
        lines += _record(record, moment)
    lines.append("</sa:SoftwareAccountingRecords>\n")
    return "\n".join(lines).encode()


def _record(record: UsageRecord, created: str) -> Iterator[str]:
    identity = f'sa:createTime="{created}" sa:recordId={quoteattr(record.id)}'
    yield "  <sa:SoftwareAccountingRecord>"
    yield f"    <sa:RecordIdentity {identity}/>"
    yield f"    {_element('JobRecordID', record.id)}"
    for software in record.software:
        yield from _software(software)
    yield "  </sa:SoftwareAccountingRecord>"


def _software(software: ReportedSoftware) -> Iterator[str]:
    yield "    <sa:Software>"
    for name, text in (
        ("Name", software.name),
        ("Version", software.version),
        ("LocalVersion", software.local_version),
        ("UserProvided", "true" if software.user_provided else "false"),
        ("Usage", software.usage),
    ):
        yield f"      {_element(name, text)}"
    yield "    </sa:Software>"


def _element(name: str, text: str) -> str:
    return f"<sa:{name}>{escape(text)}</sa:{name}>" if text else f"<sa:{name}/>"
