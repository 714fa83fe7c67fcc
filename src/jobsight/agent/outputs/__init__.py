"""Outputs: where the documents of a job go. Short name -> import string; the seeds' names lead to
the same classes.

An output is made as ``Class(options, view, name)``. Its options are a :class:`msgspec.Struct` that
checks itself, so that a mistake in a site's file is found before the first job and not at its end.
"""

from __future__ import annotations

from typing import Final

_HERE: Final = "jobsight.agent.outputs"

OUTPUTS: Final[dict[str, str]] = {
    "carbon": f"{_HERE}.carbon:CarbonOutput",
    "collectd": f"{_HERE}.collectd:CollectdOutput",
    "file": f"{_HERE}.file:FileOutput",
    "http": f"{_HERE}.http:HttpOutput",
    "textfile": f"{_HERE}.textfile:TextfileOutput",
    # The seeds' names.
    "sams.output.Carbon": f"{_HERE}.carbon:CarbonOutput",
    "sams.output.Collectd": f"{_HERE}.collectd:CollectdOutput",
    "sams.output.File": f"{_HERE}.file:FileOutput",
    "sams.output.Http": f"{_HERE}.http:HttpOutput",
    "sams.output.Prometheus": f"{_HERE}.textfile:TextfileOutput",
}

LISTENERS: Final[dict[str, str]] = {
    "prometheus": f"{_HERE}.listener:PrometheusListener",
    "sams.listener.Prometheus": f"{_HERE}.listener:PrometheusListener",
}
