"""sams.sampler.SlurmInfo: who the job is, as the scheduler said it.

Nothing here is read out of text that a user can write: the records come from structured sources,
and this sampler only puts them into the seed's fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, tzinfo
from typing import Final
from zoneinfo import ZoneInfo

from jobsight.agent.job import Document, JobView
from jobsight.agent.samplers.base import JobSampler
from jobsight.agent.samplers.node import Node
from jobsight.errors import ConfigError
from jobsight.model import SECOND
from jobsight.text import readable_text

#: What must be known before the seed says anything.
_NEEDED: Final = ("account", "cpus", "nodes", "starttime", "username", "uid")


class SlurmInfo(JobSampler):
    """Says who the job is once that is known, and again when it changed."""

    name = "sams.sampler.SlurmInfo"

    def __init__(
        self,
        *,
        environment: Mapping[str, str] | None = None,
        scontrol: str | None = None,
        sampler_interval: float = 60.0,
        node: Node | None = None,
    ) -> None:
        super().__init__(sampler_interval=sampler_interval, node=node)
        # ``scontrol`` stands in the files of sites; no command is run here.
        del scontrol
        if environment is not None and not isinstance(environment, Mapping):
            raise ConfigError(f"{self.name}: environment must be a map, such as TZ: UTC")
        self._zone = _zone(self.name, (environment or {}).get("TZ"))
        self._said: Document | None = None

    def document(self, view: JobView) -> Document | None:
        found = self.final(view)
        if found == self._said or any(name not in found for name in _NEEDED):
            return None
        self._said = found
        return dict(found)

    def final(self, view: JobView) -> Document:
        info = view.info
        values: Document = {
            "account": info.account,
            "username": info.user,
            "uid": info.uid,
            "nodes": len(info.nodes) if info.nodes is not None else None,
            "cpus": info.cpus,
            "partition": info.partition,
            "jobname": info.name,
        }
        # Every value is a text in the seed's records, the numbers too.
        found: Document = {
            name: readable_text(str(value)) for name, value in values.items() if value is not None
        }
        if info.start is not None:
            moment = datetime.fromtimestamp(info.start / SECOND, UTC).astimezone(self._zone)
            found["starttime"] = moment.strftime("%Y-%m-%dT%H:%M:%S")
            found["starttimestamp"] = info.start / SECOND
        return found


def _zone(where: str, name: object) -> tzinfo | None:
    """The zone that a TZ names; None is the zone of this machine."""
    if name is None:
        return None
    text = str(name).removeprefix(":")
    if text in ("UTC", "UTC0", "GMT", "GMT0"):
        return UTC
    try:
        return ZoneInfo(text)
    except (OSError, ValueError, LookupError):
        raise ConfigError(
            f"{where}: environment has TZ: {name}; right would be a name such as UTC or "
            "Europe/Stockholm"
        ) from None
