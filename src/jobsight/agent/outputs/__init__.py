"""Outputs: where the documents of a job go. Short name -> import string; the seeds' names lead to
the same classes.

An output is made as ``Class(options, view, name)``. Its options are a :class:`msgspec.Struct` that
checks itself, so that a mistake in a site's file is found before the first job and not at its end.
"""

from __future__ import annotations

from typing import Final

OUTPUTS: Final[dict[str, str]] = {
    "carbon": "jobsight.agent.outputs.carbon:CarbonOutput",
    "collectd": "jobsight.agent.outputs.collectd:CollectdOutput",
    "file": "jobsight.agent.outputs.file:FileOutput",
    "http": "jobsight.agent.outputs.http:HttpOutput",
    "textfile": "jobsight.agent.outputs.textfile:TextfileOutput",
    # The seeds' names.
    "sams.output.Carbon": "jobsight.agent.outputs.carbon:CarbonOutput",
    "sams.output.Collectd": "jobsight.agent.outputs.collectd:CollectdOutput",
    "sams.output.File": "jobsight.agent.outputs.file:FileOutput",
    "sams.output.Http": "jobsight.agent.outputs.http:HttpOutput",
    "sams.output.Prometheus": "jobsight.agent.outputs.textfile:TextfileOutput",
}

LISTENERS: Final[dict[str, str]] = {
    "prometheus": "jobsight.agent.outputs.listener:PrometheusListener",
    "sams.listener.Prometheus": "jobsight.agent.outputs.listener:PrometheusListener",
}
