"""``--test-output``: one document through every output, to see whether the settings are right."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

from jobsight.agent.job import Document, JobView
from jobsight.agent.outputs.worker import OutputPlan
from jobsight.agent.processes.process import JobUsage
from jobsight.config.settings import short_host_name
from jobsight.errors import JobsightError
from jobsight.model import JobInfo, Sighting

if TYPE_CHECKING:
    from jobsight.agent.job import Probe


def view_of(job_id: int, node: str) -> JobView:
    """A job that is only a name."""
    cluster = short_host_name()
    return JobView(
        sighting=Sighting(cluster, job_id, node, "", time.time_ns()),
        info=JobInfo(cluster=cluster, job_id=job_id, source="test"),
        # There is nothing to measure, and outputs only ask who the job is.
        probe=cast("Probe", None),
        usage=JobUsage(),
    )


def read_document(file: Path) -> dict[str, Document]:
    try:
        document = json.loads(file.read_bytes())
    except OSError as error:
        raise JobsightError(f"{file} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise JobsightError(f"{file}: is no JSON: {error}") from None
    if not isinstance(document, dict) or not all(isinstance(v, dict) for v in document.values()):
        raise JobsightError(f"{file}: right: one object per sampler, as in a record of a job")
    return document


def try_outputs(plans: Sequence[OutputPlan], file: Path, job_id: int, node: str) -> int:
    """Store and write once, without threads and retries, and say how each output did."""
    documents = read_document(file)
    view = view_of(job_id, node)
    failed = 0
    for plan in plans:
        try:
            output = plan.factory(view)
            try:
                for sampler, document in documents.items():
                    output.store(view, sampler, document)
                output.write(view, documents)
            finally:
                output.close()
        except Exception as error:
            failed += 1
            print(f"{plan.name}: failed: {type(error).__name__}: {error}", file=sys.stderr)
        else:
            print(f"{plan.name}: done")
    return 1 if failed else 0
