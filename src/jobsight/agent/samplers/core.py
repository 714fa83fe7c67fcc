"""sams.sampler.Core: which job, on which node."""

from __future__ import annotations

from jobsight.agent.samplers.base import JobSampler
from jobsight.agent.view import Document, JobView


class Core(JobSampler):
    """Says its two words once, and again at the end."""

    name = "sams.sampler.Core"
    _said = False

    def document(self, view: JobView) -> Document | None:
        if self._said:
            return None
        self._said = True
        return self.final(view)

    def final(self, view: JobView) -> Document:
        return {"jobid": view.sighting.job_id, "node": view.sighting.node}
