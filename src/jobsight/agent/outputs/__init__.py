"""The outputs: each writes the documents of a job to another system.

Start with ``worker.py``, the thread and queue behind each output, then read one output, such as
``file.py``. ``sams_record.py`` has the record that SAMS reads, ``record_spool.py`` keeps
undelivered records, ``mapping.py`` maps documents to metric names of other systems. The tables
below map short names, and the names of SAMS, to classes. A class is called as ``Class(options,
view, name)``; its ``Options`` is a :class:`msgspec.Struct` that is checked before the first job.
"""

from __future__ import annotations

from typing import Final

OUTPUTS: Final[dict[str, str]] = {
    "carbon": "jobsight.agent.outputs.carbon:CarbonOutput",
    "collectd": "jobsight.agent.outputs.collectd:CollectdOutput",
    "file": "jobsight.agent.outputs.file:FileOutput",
    "http": "jobsight.agent.outputs.http:HttpOutput",
    "textfile": "jobsight.agent.outputs.textfile:TextfileOutput",
    # SAMS's names.
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
