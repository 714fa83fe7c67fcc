"""Prometheus's text: labels, numbers and the head of each family, also as OpenMetrics has them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from jobsight.prometheus.names import Family

PLAIN: Final = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"


def escape_label(text: str) -> str:
    r"""Escape a label's value. Bytes that are no UTF-8 are written as ``\xNN``."""
    plain = text.encode("utf-8", "surrogatepass").decode("utf-8", "backslashreplace")
    return plain.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def labels_text(labels: Mapping[str, str]) -> str:
    """Labels as they stand in braces behind a name, without the braces."""
    return ",".join(f'{name}="{escape_label(value)}"' for name, value in labels.items())


def line(name: str, labels: Mapping[str, str], value: int | float) -> str:
    """One sample."""
    inside = f"{{{labels_text(labels)}}}" if labels else ""
    return f"{name}{inside} {value!r}\n"


def head(family: Family, *, openmetrics: bool = False) -> str:
    """What stands before the samples of a family."""
    name, kind = family.name, str(family.kind)
    if openmetrics:
        # There the suffix belongs to the sample and not to the family.
        name = name.removesuffix("_total") if kind == "counter" else name
        name = name.removesuffix("_info") if kind == "info" else name
    else:
        kind = {"info": "gauge", "unknown": "untyped"}.get(kind, kind)
    text = family.help.replace("\\", "\\\\").replace("\n", "\\n")
    return f"# HELP {name} {text}\n# TYPE {name} {kind}\n"


def document(
    families: Iterable[Family], lines: Mapping[str, Iterable[str]], *, openmetrics: bool = False
) -> str:
    """The whole text: the families in their order, the samples of each together."""
    parts = []
    for family in families:
        found = lines.get(family.name)
        if found:
            parts.append(head(family, openmetrics=openmetrics))
            parts.extend(found)
    if openmetrics:
        parts.append("# EOF\n")
    return "".join(parts)
