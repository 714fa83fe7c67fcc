"""The text formats of Prometheus and OpenMetrics: labels, samples and the header of a family."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from jobsight.prometheus.names import Family

PLAIN: Final = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"


def escape_label(text: str) -> str:
    r"""Escape the value of a label. Bytes that are not UTF-8 are written as ``\xNN``."""
    plain = text.encode("utf-8", "surrogatepass").decode("utf-8", "backslashreplace")
    return plain.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def labels_text(labels: Mapping[str, str]) -> str:
    """Labels as they appear after a name, without the braces."""
    return ",".join(f'{name}="{escape_label(value)}"' for name, value in labels.items())


def line(name: str, labels: Mapping[str, str], value: int | float) -> str:
    """One sample."""
    braces = f"{{{labels_text(labels)}}}" if labels else ""
    return f"{name}{braces} {value!r}\n"


def header(family: Family, *, openmetrics: bool = False) -> str:
    """The HELP and TYPE lines of a family."""
    name, kind = family.name, str(family.kind)
    if openmetrics:
        # In OpenMetrics the suffix belongs to the sample and not to the family.
        name = name.removesuffix("_total") if kind == "counter" else name
        name = name.removesuffix("_info") if kind == "info" else name
    else:
        kind = {"info": "gauge", "unknown": "untyped"}.get(kind, kind)
    text = family.help.replace("\\", "\\\\").replace("\n", "\\n")
    return f"# HELP {name} {text}\n# TYPE {name} {kind}\n"


def document(
    families: Iterable[Family], lines: Mapping[str, Iterable[str]], *, openmetrics: bool = False
) -> str:
    """The complete text: the families in the given order, each with its samples."""
    parts = []
    for family in families:
        samples = lines.get(family.name)
        if samples:
            parts.append(header(family, openmetrics=openmetrics))
            parts.extend(samples)
    if openmetrics:
        parts.append("# EOF\n")
    return "".join(parts)
