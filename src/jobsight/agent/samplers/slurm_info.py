"""sams.sampler.SlurmInfo: account, user and resources of the job, in the fields of SAMS.

Nothing here is parsed from text that a user can write: the values come from the scheduler's
structured records.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, tzinfo
from typing import Unpack
from zoneinfo import ZoneInfo

from jobsight.agent.job import Document, JobView
from jobsight.agent.samplers.base import JobSampler, SamplerOptions
from jobsight.errors import ConfigError
from jobsight.model import SECOND
from jobsight.text import readable_text


class SlurmInfo(JobSampler):
    """Reports what is known of the job, and again after each change.

    SAMS reports nothing until the record is complete. Labels of live outputs need account and
    user, which the prolog knows before Slurm has been queried for the rest.
    """

    name = "sams.sampler.SlurmInfo"
    every_tick = True

    def __init__(
        self,
        *,
        environment: Mapping[str, str] | None = None,
        scontrol: str | None = None,
        **common: Unpack[SamplerOptions],
    ) -> None:
        super().__init__(**common)
        # The collector runs squeue from its directory; see jobsight.sams.node.settings.
        del scontrol
        if environment is not None and not isinstance(environment, Mapping):
            raise ConfigError(f"{self.name}: environment must be a mapping such as TZ: UTC")
        self._zone = _zone(self.name, (environment or {}).get("TZ"))
        self._reported: Document | None = None

    def document(self, view: JobView) -> Document | None:
        document = self.final(view)
        if not document or document == self._reported:
            return None
        self._reported = document
        return dict(document)

    def final(self, view: JobView) -> Document:
        info = view.info
        values: Document = {
            "account": info.account,
            "username": info.user,
            "uid": info.uid,
            "nodes": info.node_count,
            "cpus": info.cpus,
            "partition": info.partition,
            "jobname": info.name,
        }
        # In SAMS records every value is a string.
        document: Document = {
            name: readable_text(str(value)) for name, value in values.items() if value is not None
        }
        if info.start is not None:
            start = datetime.fromtimestamp(info.start / SECOND, UTC).astimezone(self._zone)
            document["starttime"] = start.strftime("%Y-%m-%dT%H:%M:%S")
            document["starttimestamp"] = info.start / SECOND
        return document


def _zone(where: str, name: object) -> tzinfo | None:
    """The time zone of a TZ variable; None is the zone of this machine."""
    if name is None:
        return None
    text = str(name).removeprefix(":")
    if text in ("UTC", "UTC0", "GMT", "GMT0"):
        return UTC
    try:
        return ZoneInfo(text)
    except (OSError, ValueError, LookupError):
        raise ConfigError(
            f"{where}: environment has TZ: {name}; expected a name such as UTC or Europe/Stockholm"
        ) from None
