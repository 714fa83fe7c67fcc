"""One job from prolog to epilog: through the node's agent where one runs, else by ourselves."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from jobsight.agent.agent import Agent
from jobsight.agent.control import Follower, Request, ask
from jobsight.agent.job import JobView, Output
from jobsight.agent.thin import ThinAgent
from jobsight.errors import JobsightError

if TYPE_CHECKING:
    from jobsight.agent.seeds import SeedSettings
    from jobsight.model import JobInfo

logger = logging.getLogger("jobsight.collector")

#: A prolog comes before the job's cgroup: so often the agent is asked whether it follows it now.
_PAUSE: Final = 0.5

Outputs = Sequence[Callable[[JobView], Output]]


class OneJob:
    """Two listeners on one node cost twice: beside an agent this is its client."""

    def __init__(
        self,
        settings: SeedSettings,
        outputs: Outputs,
        *,
        cluster: str,
        job_id: int,
        node: str,
        run_folder: Path,
        info: JobInfo | None = None,
    ) -> None:
        self._settings = settings
        self._outputs = outputs
        self._cluster = cluster
        self._job_id = job_id
        self._node = node
        self._folder = run_folder
        self._info = info
        self._engine: Agent | ThinAgent | None = None
        self._stop = threading.Event()

    def stop(self) -> None:
        self._stop.set()
        if self._engine is not None:
            self._engine.stop()

    def run(self) -> None:
        if self._agent_answers():
            self._follow()
        if not self._stop.is_set() and not self._agent_answers():
            self._measure()

    def _agent_answers(self) -> bool:
        return ask(self._folder, Request("status")) is not None

    def _follow(self) -> None:
        """Through the agent, as often as the job comes (it may be requeued to this node)."""
        if self._info is not None:
            ask(self._folder, Request("job", self._job_id, self._info))
        last_seen = time.monotonic()
        while not self._stop.wait(_PAUSE):
            try:
                follower = Follower(self._folder, self._job_id)
            except JobsightError:
                if time.monotonic() - last_seen > self._settings.grace_period:
                    logger.info("no process for %g s: ending", self._settings.grace_period)
                    self._stop.set()
                continue
            except (OSError, msgspec.MsgspecError) as error:
                logger.warning("the node's agent has gone: %s", error)
                return
            logger.info("job %d: following through the node's agent", self._job_id)
            self._run(
                ThinAgent(
                    follower,
                    cluster=self._cluster,
                    job_id=self._job_id,
                    samplers=self._settings.samplers,
                    outputs=[_informed(make, self._info) for make in self._outputs],
                )
            )
            last_seen = time.monotonic()

    def _measure(self) -> None:
        agent = Agent(
            cluster=self._cluster,
            node=self._node,
            spool=None,
            samplers=self._settings.samplers,
            outputs=self._outputs,
            job_id=self._job_id,
            grace_period=self._settings.grace_period,
        )
        if self._info is not None:
            agent.tell(self._info)
        self._run(agent)

    def _run(self, engine: Agent | ThinAgent) -> None:
        self._engine = engine
        if self._stop.is_set():
            engine.stop()
        try:
            engine.run()
        except JobsightError as error:
            # The job went in the moment between question and answer.
            logger.error("%s", error)
        finally:
            self._engine = None


def _informed(
    make: Callable[[JobView], Output], info: JobInfo | None
) -> Callable[[JobView], Output]:
    """What the prolog said is known here and not in what the agent sends."""

    def informed(view: JobView) -> Output:
        if info is not None:
            for name in info.__struct_fields__:
                value = getattr(info, name)
                if value is not None:
                    setattr(view.info, name, value)
        return make(view)

    return informed
