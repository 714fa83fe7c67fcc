"""The names of what Slurm's profile plugin sends to the agent, in base units.

The plugin sends Slurm's own fields by group; a field that is not in the table, of a newer Slurm or
of a sensor, gets its name as it is.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from jobsight.prometheus.names import Family, Kind

#: On every series of the plugin, besides the labels of a job.
LABELS: Final = ("step", "group", "task")
_KIBIBYTE: Final = 2**10
_MEBIBYTE: Final = 2**20


class Rule(NamedTuple):
    """How a field of Slurm's is offered."""

    family: Family
    scale: float = 1.0


def _rule(name: str, kind: Kind, text: str, scale: float = 1.0) -> Rule:
    return Rule(Family(f"jobsight_profile_{name}", kind, text, LABELS), scale)


#: Group and field -> rule. None: left out, because a sum of the same stands beside it.
_RULES: Final[dict[tuple[str, str], Rule | None]] = {
    ("task", "CPUTime"): None,
    ("task", "ReadMB"): None,
    ("task", "WriteMB"): None,
    ("task", "jobsight_profile_cpu_seconds_total"): _rule(
        "cpu_seconds_total", "counter", "CPU time of the task, as Slurm sampled it"
    ),
    ("task", "jobsight_profile_read_bytes_total"): _rule(
        "read_bytes_total", "counter", "Bytes that the task read, as Slurm sampled it"
    ),
    ("task", "jobsight_profile_written_bytes_total"): _rule(
        "written_bytes_total", "counter", "Bytes that the task wrote, as Slurm sampled it"
    ),
    ("task", "CPUFrequency"): _rule("cpu_frequency", "gauge", "Slurm's CPUFrequency of the task"),
    ("task", "CPUUtilization"): _rule(
        "cpu_utilization_ratio", "gauge", "Cores that the task used since the sample before", 0.01
    ),
    ("task", "RSS"): _rule("resident_bytes", "gauge", "Memory of the task", _KIBIBYTE),
    ("task", "VMSize"): _rule("virtual_bytes", "gauge", "Virtual memory of the task", _KIBIBYTE),
    ("task", "Pages"): _rule("page_faults", "gauge", "Major page faults of the task so far"),
    ("task", "GPUMemMB"): _rule("gpu_memory_bytes", "gauge", "GPU memory of the task", _MEBIBYTE),
    ("task", "GPUUtilization"): _rule(
        "gpu_utilization_ratio", "gauge", "GPUs that the task used", 0.01
    ),
    ("energy", "Power"): _rule("power_watts", "gauge", "Power of the whole node"),
    ("filesystem", "Reads"): _rule("filesystem_reads", "gauge", "Reads of the whole node so far"),
    ("filesystem", "Writes"): _rule(
        "filesystem_writes", "gauge", "Writes of the whole node so far"
    ),
    ("filesystem", "ReadMB"): _rule(
        "filesystem_read_bytes", "gauge", "Bytes that the whole node has read so far", _MEBIBYTE
    ),
    ("filesystem", "WriteMB"): _rule(
        "filesystem_written_bytes",
        "gauge",
        "Bytes that the whole node has written so far",
        _MEBIBYTE,
    ),
    ("network", "PacketsIn"): _rule(
        "network_received_packets", "gauge", "Packets to the whole node since the sample before"
    ),
    ("network", "PacketsOut"): _rule(
        "network_sent_packets", "gauge", "Packets from the whole node since the sample before"
    ),
    ("network", "InMB"): _rule(
        "network_received_bytes",
        "gauge",
        "Bytes to the whole node since the sample before",
        _MEBIBYTE,
    ),
    ("network", "OutMB"): _rule(
        "network_sent_bytes",
        "gauge",
        "Bytes from the whole node since the sample before",
        _MEBIBYTE,
    ),
}

TIMESTAMP: Final = Family(
    "jobsight_profile_sample_timestamp_seconds", "gauge", "When Slurm took the sample", LABELS
)
DROPPED: Final = Family(
    "jobsight_profile_dropped_samples_total",
    "counter",
    "Samples that the plugin could not deliver",
    LABELS[:1],
)
FAILED: Final = Family(
    "jobsight_profile_failed_sends_total", "counter", "Failed sends of the plugin", LABELS[:1]
)
REFUSED: Final = Family(
    "jobsight_profile_refused_datagrams_total",
    "counter",
    "Datagrams of the plugin that were no samples, or found no room",
)


def rule_of(group: str, field: str) -> Rule | None:
    """The rule of a field; None where it is not offered."""
    try:
        return _RULES[group, field]
    except KeyError:
        words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|[^A-Za-z0-9]+", "_", field).strip("_").lower()
        return _rule(f"{group}_{words}", "gauge", f"Slurm's {field} of the group {group}")
