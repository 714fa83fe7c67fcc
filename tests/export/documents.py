"""Exported files, read back by a real parser."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

NAMESPACE = "{http://sams.snic.se/namespaces/2019/01/softwareaccountingrecords}"
#: Name, version, local version, user provided and percent of each software.
Software = list[tuple[str, ...]]


def read_file(file: Path) -> list[tuple[str, Software]]:
    """The records of a file: id and software."""
    root = ElementTree.fromstring(file.read_bytes())
    assert root.tag == f"{NAMESPACE}SoftwareAccountingRecords"
    return [_record(element) for element in root]


def read_all(folder: Path) -> list[tuple[str, Software]]:
    """The records of all files, in the order of their names."""
    return [record for file in sorted(folder.glob("*.xml")) for record in read_file(file)]


def _record(element: ElementTree.Element) -> tuple[str, Software]:
    identity, job_id, *software = element
    assert [identity.tag, job_id.tag] == [f"{NAMESPACE}RecordIdentity", f"{NAMESPACE}JobRecordID"]
    assert identity.get(f"{NAMESPACE}recordId") == job_id.text
    names = ("Name", "Version", "LocalVersion", "UserProvided", "Usage")
    for one in software:
        assert [child.tag for child in one] == [f"{NAMESPACE}{name}" for name in names]
    return job_id.text or "", [tuple(child.text or "" for child in one) for one in software]
