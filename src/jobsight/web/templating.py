"""The templates' environment: everything is escaped, and figures come from ``reports.units``."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import cache
from typing import Any, NamedTuple
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined

import jobsight
from jobsight.model import SECOND
from jobsight.reports import units
from jobsight.reports.report import GROUPS, describe_state, tone_of
from jobsight.text import readable_text


class State(NamedTuple):
    """A state in words, and the tone of its mark."""

    word: str
    tone: str


def state_of(state: str, text: str = "") -> State:
    """Say a state in the words that every place uses, as the beginning of a line."""
    words = readable_text(text or describe_state(state, None, None))
    return State(words[:1].upper() + words[1:], tone_of(state))


def machine_time(moment: int) -> str:
    """Write a time for the ``datetime`` attribute of a ``<time>`` element."""
    try:
        return datetime.fromtimestamp(moment // SECOND, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return ""


def percent(share: float | None) -> str:
    """Write a share as the width of a bar: between 0 and 100, without a sign."""
    # NaN compares false with everything and would otherwise reach the page as a width.
    if share is None or not share > 0:
        return "0"
    return f"{min(share, 1.0) * 100:.2f}"


def path_pieces(path: str) -> tuple[str, str]:
    """Cut a path into folder and file, so that the file stays visible where the path is cut."""
    folder, slash, file = path.rpartition("/")
    return folder + slash, file


def metric_value(value: float | None, unit: str) -> str:
    """Write a value of a curve in the unit that :attr:`Metric.rate_unit` names."""
    match unit:
        case "bytes":
            return units.format_bytes(value)
        case "bytes per second":
            return units.format_byte_rate(value)
        case "cores":
            return units.format_cores(value)
        case "count per second":
            return units.UNKNOWN if value is None else f"{units.format_count(round(value, 2))}/s"
        case "nanoseconds":
            return units.format_duration(None if value is None else round(value))
        case _:
            return units.format_count(None if value is None else round(value, 2))


def readable_lines(text: str) -> str:
    """Write a command with its line breaks; backslashes stay single, so that it can be copied."""
    return "\n".join(readable_text(line).replace("\\\\", "\\") for line in text.split("\n"))


def readable_name(text: str | None) -> str | None:
    return None if text is None else readable_text(text)


def group_title(group: str) -> str:
    return GROUPS.get(group, group.capitalize())


def path_of_run(run: str) -> str:
    return quote(run, safe=":+")


@cache
def environment() -> Environment:
    """The one environment; it holds no state besides the compiled templates."""
    made = Environment(
        loader=PackageLoader("jobsight.web"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals.update(version=jobsight.__version__, root="")
    made.filters.update(
        bytes=units.format_bytes,
        duration=units.format_duration,
        share=units.format_share,
        count=units.format_count,
        cores=units.format_cores,
        moment=units.format_time,
        machine_time=machine_time,
        percent=percent,
        state_of=state_of,
        path_pieces=path_pieces,
        metric_value=metric_value,
        path_of_run=path_of_run,
        readable=readable_name,
        readable_lines=readable_lines,
        group_title=group_title,
    )
    return made


def render(template: str, **context: Any) -> str:
    """Render one template of this package to text."""
    return environment().get_template(template).render(**context)
