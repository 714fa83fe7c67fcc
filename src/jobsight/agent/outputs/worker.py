"""One output in a thread of its own: nothing it does, or fails to do, delays the sampling.

One worker carries an output for all jobs of a node: a thread per job and output would cost more
than the sampling.

What the engine holds of one output of one job: two calls that never wait.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import msgspec

from jobsight.agent.job import Document, JobView, Output
from jobsight.agent.outputs.http import Refused
from jobsight.errors import JobsightError
from jobsight.text import readable_text

logger = logging.getLogger("jobsight.output")

#: Samples that may wait; with 10 samplers and 60 s between samples that is well over an hour.
DEFAULT_LIMIT: Final = 1000
#: A site's own output may call sys.exit, which would end the thread without a word.
_FAULTS: Final = (Exception, SystemExit)
#: Causes that are told apart in the log; beyond it, a cause is only counted.
_CAUSES: Final = 100


class OutputPlan(NamedTuple):
    """How to make an output for a job, and how patient to be with it."""

    name: str
    factory: Callable[[JobView], Output]
    retry_count: int = 3
    retry_sleep: float = 3.0


class Counts(msgspec.Struct):
    """What became of the samples and records of one output."""

    stored: int = 0
    #: Samples that found the queue full, and samples that the output could not take.
    dropped: int = 0
    failed: int = 0
    written: int = 0
    #: Records that the other side will never take; the output has put them aside.
    refused: int = 0
    #: Records that could not be written but wait on this node's disk, and those that do not.
    kept: int = 0
    lost: int = 0


class _Job(msgspec.Struct):
    """One job's output, as the thread knows it."""

    view: JobView
    output: Output | None = None
    documents: dict[str, Document] | None = None
    attempts: int = 0
    #: Monotonic time of the next attempt to write.
    due: float = 0.0


class _Sample(NamedTuple):
    job: _Job
    sampler: str
    document: Document


class JobOutput:
    """An output as one job sees it: what it is given waits in the worker's queue."""

    def __init__(self, worker: OutputWorker, view: JobView) -> None:
        self.name = worker.name
        self._worker = worker
        self._job = _Job(view=view)

    def store(self, view: JobView, sampler: str, document: Document) -> None:
        self._worker.put(_Sample(self._job, sampler, document))

    def write(self, view: JobView, documents: dict[str, Document]) -> None:
        """The job has ended: its record is written after the samples that still wait."""
        self._job.documents = documents
        self._worker.put(self._job)

    def close(self) -> None:
        """The worker closes the output when it has been written."""


class OutputWorker:
    """Carries one configured output for all jobs of the node.

    Samples of one job are stored in their order, and all of them before its ``write``.
    """

    def __init__(
        self,
        plan: OutputPlan,
        *,
        limit: int = DEFAULT_LIMIT,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.plan = plan
        self.name = plan.name
        self.counts = Counts()
        self._limit = limit
        self._clock = clock
        #: Samples and, after the last sample of each, finished jobs.
        self._queue: deque[_Sample | _Job] = deque()
        self._waiting = 0
        #: Finished jobs whose record is to be tried again.
        self._again: list[_Job] = []
        #: Jobs whose output is open, by the identity of their entry.
        self._open: dict[int, _Job] = {}
        self._causes: dict[str, int] = {}
        self._change = threading.Condition()
        self._ending = False
        self._deadline: float | None = None
        self._thread = threading.Thread(target=self._run, name=f"output {plan.name}", daemon=True)
        self._thread.start()

    def job(self, view: JobView) -> JobOutput:
        """A job's way into this output."""
        return JobOutput(self, view)

    def put(self, work: _Sample | _Job) -> None:
        """Queue a sample or a finished job. When the output is too slow, the oldest sample goes;
        a record never does."""
        with self._change:
            if isinstance(work, _Sample):
                if self._waiting >= self._limit:
                    self._drop_oldest()
                self._waiting += 1
            self._queue.append(work)
            self._change.notify()

    def _drop_oldest(self) -> None:
        for index, work in enumerate(self._queue):
            if isinstance(work, _Sample):
                del self._queue[index]
                self._waiting -= 1
                self.counts.dropped += 1
                return

    @property
    def depth(self) -> int:
        """Samples and records that wait."""
        return len(self._queue) + len(self._again)

    def ask_to_end(self, timeout: float) -> None:
        """Work off what waits, for so long at most."""
        with self._change:
            self._ending = True
            self._deadline = self._clock() + timeout
            self._change.notify()

    def end(self, timeout: float = 30.0) -> bool:
        """Work off what waits, for so long at most; False when a record was lost."""
        if not self._ending:
            self.ask_to_end(timeout)
        assert self._deadline is not None
        self._thread.join(max(0.0, self._deadline - self._clock()) + 1.0)
        if self._thread.is_alive():
            logger.error("%s: still busy after %g s", self.name, timeout)
            with self._change:
                left = [work for work in self._queue if isinstance(work, _Job)] + self._again
                self._queue.clear()
                self._again.clear()
            for job in left:
                # The thread hangs in another job's exchange; what a disk can save is saved.
                self._give_up(job)
        return not self._thread.is_alive() and not self.counts.lost

    @property
    def _late(self) -> bool:
        return self._deadline is not None and self._clock() >= self._deadline

    def _run(self) -> None:
        while True:
            with self._change:
                while (work := self._next()) is None:
                    if self._ending and not self._again:
                        break
                    self._change.wait(self._pause())
            if work is None:
                break
            if isinstance(work, _Job):
                self._write(work)
            elif self._late:
                # Time is up: what is left of it belongs to the records.
                self.counts.dropped += 1
            else:
                self._store(work)
        for job in list(self._open.values()):
            self._close(job)

    def _next(self) -> _Sample | _Job | None:
        for index, job in enumerate(self._again):
            if self._late or job.due <= self._clock():
                return self._again.pop(index)
        if not self._queue:
            return None
        work = self._queue.popleft()
        if isinstance(work, _Sample):
            self._waiting -= 1
        return work

    def _pause(self) -> float | None:
        times = [job.due for job in self._again]
        if self._deadline is not None and times:
            times.append(self._deadline)
        return max(0.0, min(times) - self._clock()) if times else None

    def _store(self, sample: _Sample) -> None:
        try:
            self._output(sample.job).store(sample.job.view, sample.sampler, sample.document)
        except _FAULTS as error:
            self.counts.failed += 1
            self._complain(sample.job, error)
        else:
            self.counts.stored += 1

    def _output(self, job: _Job) -> Output:
        if job.output is None:
            job.output = self.plan.factory(job.view)
            self._open[id(job)] = job
        return job.output

    def _write(self, job: _Job) -> None:
        job.attempts += 1
        try:
            self._output(job).write(job.view, job.documents or {})
        except Refused as error:
            self._complain(job, error)
            self.counts.refused += 1
        except _FAULTS as error:
            self._complain(job, error)
            if job.attempts < self.plan.retry_count and not self._late:
                job.due = self._clock() + self.plan.retry_sleep
                with self._change:
                    self._again.append(job)
                return
            self._give_up(job)
        else:
            self.counts.written += 1
        self._close(job)

    def _give_up(self, job: _Job) -> None:
        """After the last attempt: some outputs can keep the record on this node."""
        try:
            keep = getattr(self._output(job), "keep", None)
            place = keep(job.view, job.documents or {}) if keep is not None else None
        except _FAULTS as error:
            self._complain(job, error)
            place = None
        job_id = job.view.sighting.job_id
        if place:
            self.counts.kept += 1
            logger.error("%s: job %d: the record waits in %s", self.name, job_id, place)
        else:
            self.counts.lost += 1
            logger.error(
                "%s: job %d: the record is lost after %d attempts", self.name, job_id, job.attempts
            )

    def _close(self, job: _Job) -> None:
        self._open.pop(id(job), None)
        try:
            if job.output is not None:
                job.output.close()
        except _FAULTS as error:
            self._complain(job, error)

    def _complain(self, job: _Job, error: BaseException) -> None:
        """Say each cause once; a dead server is not worth a line per sample."""
        text = readable_text(str(error))[:500]
        cause = f"{type(error).__name__}: {text}"
        count = self._causes.get(cause, 0)
        if count == 0 and len(self._causes) >= _CAUSES:
            return
        self._causes[cause] = count + 1
        if count:
            return
        # A trace is for faults of ours; what a person can put right is one line.
        expected = isinstance(error, OSError | JobsightError)
        logger.error(
            "%s: job %d: %s",
            self.name,
            job.view.sighting.job_id,
            text if expected else cause,
            exc_info=None if expected else error,
        )


def end_all(workers: Sequence[OutputWorker], timeout: float = 30.0) -> bool:
    """End all outputs at once: the slowest decides how long it takes, not their sum."""
    for worker in workers:
        worker.ask_to_end(timeout)
    ended = [worker.end(timeout) for worker in workers]
    return all(ended)


class OutputHandle:
    """A job's output behind a thread: the one that serves it for all jobs, else one of its own."""

    def __init__(self, output: Output, view: JobView) -> None:
        self.view = view
        self.name = output.name
        self.worker: OutputWorker | None = None
        self._output: Output = output
        if not isinstance(output, JobOutput):
            self.worker = OutputWorker(OutputPlan(output.name, lambda view: output))
            self._output = self.worker.job(view)

    def store(self, sampler: str, document: Document) -> None:
        """Hand over a sample."""
        self._output.store(self.view, sampler, document)

    def finish(self, documents: dict[str, Document]) -> None:
        """The job has ended: these are the samplers' last words."""
        self._output.write(self.view, documents)

    def end(self, timeout: float = 30.0) -> bool:
        """Wait for a thread of its own; a shared one is ended by whoever made it."""
        return self.worker is None or self.worker.end(timeout)
