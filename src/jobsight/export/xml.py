"""Records as XML, the way that SAMS writes them for SGAS."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Final
from xml.sax.saxutils import escape, quoteattr

from jobsight.export.records import ReportedSoftware, UsageRecord

NAMESPACE: Final = "http://sams.snic.se/namespaces/2019/01/softwareaccountingrecords"


def to_xml(records: Iterable[UsageRecord], created: float) -> bytes:
    """One document; ``created`` is in seconds since 1970."""
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
