"""Connects the exporter to the settings and the agent: endpoint, push, remote write, plugin."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from jobsight.agent.exporter.exporter import AgentMetrics, Exporter
from jobsight.agent.sampling import SamplerPlan

if TYPE_CHECKING:
    from jobsight.agent.agent import Agent
    from jobsight.agent.exporter.profile_plugin import PluginSocket
    from jobsight.agent.outputs.worker import OutputWorker
    from jobsight.config.settings import AgentSettings

#: Seconds between two updates of the agent's own metrics.
_OWN_INTERVAL: Final = 5.0


class ExporterService:
    """The exporter of an agent, and the ways by which its series leave the node.

    Modules are imported only if the settings use them, to save memory on every node.
    """

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

            # Not in the run directory: groups must be deleted after a reboot as well.
            groups_file = Path(settings.spool) / "pushgateway.json"
            self.pusher = Pusher(self.exporter, settings.push, groups_file)
        self.remote_writer = None
        if settings.remote_write.url:
            from jobsight.prometheus.remote_write import RemoteWriter

            directory = Path(settings.spool) / "remote-write"
            self.remote_writer = RemoteWriter(
                "agent.remote_write", settings.remote_write, directory
            )
        self.endpoint = None
        if metrics.listen:
            from jobsight.agent.exporter.http import Endpoint

            self.endpoint = Endpoint(self.exporter, metrics)
            if not wait_for_address:
                self.endpoint.open()

    @property
    def enabled(self) -> bool:
        """Whether anything reads the exporter."""
        return self.endpoint is not None or self.pusher is not None

    def plans(self, plans: Sequence[SamplerPlan]) -> list[SamplerPlan]:
        """The samplers of a job, with the exporter's if it is enabled."""
        return self.exporter.plans(plans) if self.enabled else list(plans)

    def start(self, agent: Agent, outputs: Sequence[OutputWorker] = ()) -> None:
        """Start exporting what the agent measures, and what its outputs lose."""
        if self.remote_writer is not None:
            if agent.collector.spool is not None:
                agent.collector.spool.copies.append(self.remote_writer.put)
            self.remote_writer.start()
        if not self.enabled:
            return
        own = AgentMetrics(self.exporter, agent.status)
        own.outputs = outputs
        self.exporter.sources.append(own)
        if self.remote_writer is not None:
            own.counts.append(self.remote_writer.target.counts)
        if self.pusher is not None:
            own.counts.append(self.pusher.counts)
            self.pusher.start()
        own.refresh()
        agent.collector.every(_OWN_INTERVAL, own.refresh)
        if self.endpoint is not None:
            self.endpoint.start()

    def listen_to_plugin(self, agent: Agent, run_directory: Path) -> None:
        """Export what the profile plugin sends to this agent as well."""
        if not self.enabled:
            return
        from jobsight.agent.exporter.profile_plugin import PluginSocket

        keep_ended = self.exporter.keep_ended
        self._plugin = PluginSocket(run_directory, agent.collector, keep_ended=keep_ended)
        self.exporter.sources.append(self._plugin)

    def close(self) -> None:
        """Stop with the agent: series must not outlive their measurement."""
        if self._plugin is not None:
            self._plugin.close()
        if self.pusher is not None:
            self.pusher.stop()
        if self.remote_writer is not None:
            self.remote_writer.close()
        if self.endpoint is not None:
            self.endpoint.close()
