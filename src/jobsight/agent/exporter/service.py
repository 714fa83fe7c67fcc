"""All ways in which an agent offers its series: put together from the settings, started, ended."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from jobsight.agent.exporter.exporter import Exporter, OwnFigures
from jobsight.agent.sampling import SamplerPlan

if TYPE_CHECKING:
    from jobsight.agent.agent import Agent
    from jobsight.agent.exporter.profile_plugin import PluginSocket
    from jobsight.config.settings import AgentSettings

#: Seconds between two looks of the agent at itself.
_OWN: Final = 5.0


class Exporting:
    """The exporter of an agent, its endpoint, and what pushes where that is wanted."""

    def __init__(self, settings: AgentSettings, *, wait_for_address: bool = True) -> None:
        metrics = settings.metrics
        self.exporter = Exporter(
            petricore_names=metrics.petricore_names,
            keep_ended=metrics.keep_ended,
            max_series=metrics.max_series,
            scratch=metrics.scratch,
            nvidia_smi_names=metrics.nvidia_smi_names,
        )
        self._plugin: PluginSocket | None = None
        self.pusher = None
        if settings.push.url:
            from jobsight.agent.exporter.push import Pusher

            # Not in the run folder: a group must not outlive a node that went down.
            memory = Path(settings.spool) / "pushgateway.json"
            self.pusher = Pusher(self.exporter, settings.push, memory)
        self.remote = None
        if settings.remote_write.url:
            from jobsight.prometheus.remote_write import RemoteWriting

            folder = Path(settings.spool) / "remote-write"
            self.remote = RemoteWriting("agent.remote_write", settings.remote_write, folder)
        self.endpoint = None
        if metrics.listen:
            from jobsight.agent.exporter.http import Endpoint

            self.endpoint = Endpoint(self.exporter, metrics)
            if not wait_for_address:
                self.endpoint.open()

    @property
    def wanted(self) -> bool:
        return self.endpoint is not None or self.pusher is not None

    def plans(self, plans: Sequence[SamplerPlan]) -> list[SamplerPlan]:
        """The samplers of a job, with the exporter among them where anybody reads it."""
        return self.exporter.plans(plans) if self.wanted else list(plans)

    def start(self, agent: Agent) -> None:
        """Offer what the agent measures, from now on."""
        if self.remote is not None:
            if agent.collector.spool is not None:
                agent.collector.spool.copies.append(self.remote.take)
            self.remote.start()
        if not self.wanted:
            return
        own = OwnFigures(self.exporter, agent.status)
        self.exporter.sources.append(own)
        if self.remote is not None:
            own.counts.append(self.remote.target.counts)
        if self.pusher is not None:
            own.counts.append(self.pusher.counts)
            self.pusher.start()
        own.refresh()
        agent.collector.every(_OWN, own.refresh)
        if self.endpoint is not None:
            self.endpoint.start()

    def take_plugin(self, agent: Agent, folder: Path) -> None:
        """Offer what Slurm's profile plugin sends to this node's agent, too."""
        if not self.wanted:
            return
        from jobsight.agent.exporter.profile_plugin import PluginSocket

        keep = self.exporter.keep_ended
        self._plugin = PluginSocket(folder, agent.collector, keep_ended=keep)
        self.exporter.sources.append(self._plugin)

    def close(self) -> None:
        """End with the agent: nothing may be offered that nobody measures any more."""
        if self._plugin is not None:
            self._plugin.close()
        if self.pusher is not None:
            self.pusher.end()
        if self.remote is not None:
            self.remote.close()
        if self.endpoint is not None:
            self.endpoint.close()
