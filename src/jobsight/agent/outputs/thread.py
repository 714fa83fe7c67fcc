"""What the engine holds of one output of one job: two calls that never wait."""

from __future__ import annotations

from jobsight.agent.outputs.worker import JobOutput, OutputPlan, OutputWorker
from jobsight.agent.view import Document, JobView, Output


class OutputThread:
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
