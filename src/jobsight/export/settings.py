"""Settings of the export."""

from __future__ import annotations

from typing import Annotated

import msgspec


class ExportSettings(msgspec.Struct, kw_only=True):
    #: The folder that gets the files, and from which they are sent.
    output_path: str = "/var/spool/softwareaccounting/records"
    #: Percent of a run's CPU time; software with less is left out of its record.
    remove_less_then: Annotated[float, msgspec.Meta(ge=0, le=100)] = 1.0
    #: Records in one file.
    jobs_per_file: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 1000
    #: Only runs of this cluster; by default those of all.
    cluster: str | None = None
    #: What the ids of records begin with, where it is not the cluster's name.
    record_name: str | None = None
    #: The zone of the starts in the ids of records; by default this machine's.
    timezone: str | None = None
    #: Report use that no rule names as a software called "undetermined". SAMS leaves it out, so
    #: that the others look larger than they are.
    undetermined: bool = False
