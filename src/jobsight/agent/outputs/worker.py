"""The thread and queue behind each output: nothing that an output does delays the sampling.

:class:`OutputWorker` serves one configured output for all jobs of the node, since a thread per
job and output would cost more than the sampling. :class:`JobOutput` is its interface for one job,
and :class:`OutputHandle` is what the engine holds; neither ever blocks.
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
from jobsight.errors import JobsightError
from jobsight.text import readable_text
from jobsight.util.log_once import LogOnce

logger = logging.getLogger(__name__)

#: Queued samples; with 10 samplers and an interval of 60 s they cover well over an hour.
DEFAULT_LIMIT: Final = 1000
#: A site's own output may call sys.exit, which would end the thread silently.
_FAILURES: Final = (Exception, SystemExit)
_MAX_CAUSES: Final = 100


class RecordRefused(JobsightError):
    """Raised by the ``write`` of an output if the receiver will never accept the record."""


class OutputPlan(NamedTuple):
    """How to create an output for a job, and how often to retry its ``write``."""

    name: str
    factory: Callable[[JobView], Output]
    retry_count: int = 3
    retry_sleep: float = 3.0


class Counts(msgspec.Struct):
    """Results for the samples and records of one output."""

    stored: int = 0
    #: Samples dropped because the queue was full, and samples that the output failed to store.
    dropped: int = 0
    failed: int = 0
    written: int = 0
    #: Records that the receiver will never accept; the output has quarantined them.
    refused: int = 0
    #: Records that were not written but saved on this node's disk, and records that were lost:
    #: not saved either, or deleted from a full disk spool of the output.
    saved: int = 0
    lost: int = 0


class _Job(msgspec.Struct):
    """The output of one job, used by the thread only."""

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


class OutputHandle:
    """A job's output behind a worker: the shared one of all jobs, else one of its own."""

    def __init__(self, output: Output, view: JobView) -> None:
        self.view = view
        self.name = output.name
        self.worker: OutputWorker | None = None
        self._output: Output = output
        if not isinstance(output, JobOutput):
            self.worker = OutputWorker(OutputPlan(output.name, lambda view: output))
            self._output = self.worker.job(view)

    def store(self, sampler: str, document: Document) -> None:
        """Queue a sample."""
        self._output.store(self.view, sampler, document)

    def finish(self, documents: dict[str, Document]) -> None:
        """Queue the final documents of a job that has ended."""
        self._output.write(self.view, documents)

    def stop(self, timeout: float = 30.0) -> bool:
        """Stop an own worker; a shared one is stopped by its creator."""
        return self.worker is None or self.worker.stop(timeout)


class JobOutput:
    """The interface of a shared worker for one job."""

    def __init__(self, worker: OutputWorker, view: JobView) -> None:
        self.name = worker.name
        self._worker = worker
        self._job = _Job(view=view)

    def store(self, view: JobView, sampler: str, document: Document) -> None:
        self._worker.put(_Sample(self._job, sampler, document))

    def write(self, view: JobView, documents: dict[str, Document]) -> None:
        """Queue the record of a job that has ended, after its remaining samples."""
        self._job.documents = documents
        self._worker.put(self._job)

    def close(self) -> None:
        """The worker closes the output after writing its record."""


class OutputWorker:
    """Serves one configured output for all jobs of the node.

    Samples of one job are stored in order, and all of them before its ``write``.
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
        self._queued_samples = 0
        #: Finished jobs whose record is to be written again.
        self._retries: list[_Job] = []
        #: Jobs whose output is open, by the identity of their entry.
        self._open: dict[int, _Job] = {}
        self._log = LogOnce(logger, max_causes=_MAX_CAUSES)
        self._change = threading.Condition()
        self._stopping = False
        self._deadline: float | None = None
        self._thread = threading.Thread(target=self._run, name=f"output {plan.name}", daemon=True)
        self._thread.start()

    def job(self, view: JobView) -> JobOutput:
        """The interface for one job."""
        return JobOutput(self, view)

    def put(self, item: _Sample | _Job) -> None:
        """Queue a sample or a finished job. If the queue is full, its oldest sample is dropped; a
        record never is."""
        with self._change:
            if isinstance(item, _Sample):
                if self._queued_samples >= self._limit:
                    self._drop_oldest()
                self._queued_samples += 1
            self._queue.append(item)
            self._change.notify()

    def _drop_oldest(self) -> None:
        for index, item in enumerate(self._queue):
            if isinstance(item, _Sample):
                del self._queue[index]
                self._queued_samples -= 1
                self.counts.dropped += 1
                return

    @property
    def depth(self) -> int:
        """The number of queued samples and records."""
        return len(self._queue) + len(self._retries)

    def request_stop(self, timeout: float) -> None:
        """Process the queue within the timeout, then stop. Does not wait."""
        with self._change:
            self._stopping = True
            self._deadline = self._clock() + timeout
            self._change.notify()

    def stop(self, timeout: float = 30.0) -> bool:
        """Process the queue within the timeout, then stop; False if a record was lost."""
        if not self._stopping:
            self.request_stop(timeout)
        assert self._deadline is not None
        self._thread.join(max(0.0, self._deadline - self._clock()) + 1.0)
        if self._thread.is_alive():
            logger.error("%s: still busy after %g s", self.name, timeout)
            with self._change:
                remaining = [item for item in self._queue if isinstance(item, _Job)]
                remaining += self._retries
                self._queue.clear()
                self._retries.clear()
            for job in remaining:
                # The thread hangs with the record of another job; save these on disk if possible.
                self._give_up(job)
        return not self._thread.is_alive() and not self.counts.lost

    @property
    def _is_late(self) -> bool:
        return self._deadline is not None and self._clock() >= self._deadline

    def _run(self) -> None:
        while True:
            with self._change:
                while (item := self._next()) is None:
                    if self._stopping and not self._retries:
                        break
                    self._change.wait(self._wait_time())
            if item is None:
                break
            if isinstance(item, _Job):
                self._write(item)
            elif self._is_late:
                # The remaining time is for the records.
                self.counts.dropped += 1
            else:
                self._store(item)
        for job in list(self._open.values()):
            self._close(job)

    def _next(self) -> _Sample | _Job | None:
        for index, job in enumerate(self._retries):
            if self._is_late or job.due <= self._clock():
                return self._retries.pop(index)
        if not self._queue:
            return None
        item = self._queue.popleft()
        if isinstance(item, _Sample):
            self._queued_samples -= 1
        return item

    def _wait_time(self) -> float | None:
        times = [job.due for job in self._retries]
        if self._deadline is not None and times:
            times.append(self._deadline)
        return max(0.0, min(times) - self._clock()) if times else None

    def _store(self, sample: _Sample) -> None:
        try:
            self._output(sample.job).store(sample.job.view, sample.sampler, sample.document)
        except _FAILURES as error:
            self.counts.failed += 1
            self._report(error)
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
        except RecordRefused as error:
            self._report(error)
            self.counts.refused += 1
        except _FAILURES as error:
            self._report(error)
            if job.attempts < self.plan.retry_count and not self._is_late:
                job.due = self._clock() + self.plan.retry_sleep
                with self._change:
                    self._retries.append(job)
                return
            self._give_up(job)
        else:
            self.counts.written += 1
            logger.debug("%s: job %d: written", self.name, job.view.sighting.job_id)
        self._close(job)

    def _give_up(self, job: _Job) -> None:
        """After the last attempt, save the record on this node if the output has ``save``."""
        try:
            save = getattr(self._output(job), "save", None)
            path = save(job.view, job.documents or {}) if save is not None else None
        except _FAILURES as error:
            self._report(error)
            path = None
        job_id = job.view.sighting.job_id
        if path:
            self.counts.saved += 1
            logger.error("%s: job %d: the record is saved in %s", self.name, job_id, path)
        else:
            self.counts.lost += 1
            logger.error(
                "%s: job %d: the record is lost after %d attempts", self.name, job_id, job.attempts
            )

    def _close(self, job: _Job) -> None:
        self._open.pop(id(job), None)
        try:
            if job.output is not None:
                self.counts.lost += getattr(job.output, "dropped_records", 0)
                job.output.close()
        except _FAILURES as error:
            self._report(error)

    def _report(self, error: BaseException) -> None:
        """Log each cause once, with a traceback unless it is an expected error."""
        text = readable_text(str(error))[:500]
        cause = f"{type(error).__name__}: {text}"
        expected = isinstance(error, OSError | JobsightError)
        self._log.report(
            cause,
            f"{self.name}: {text if expected else cause}",
            level=logging.ERROR,
            error=None if expected else error,
        )


def stop_all(workers: Sequence[OutputWorker], timeout: float = 30.0) -> bool:
    """Stop all outputs concurrently; False if a record was lost."""
    for worker in workers:
        worker.request_stop(timeout)
    stopped = [worker.stop(timeout) for worker in workers]
    return all(stopped)
