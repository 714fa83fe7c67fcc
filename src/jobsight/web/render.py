"""Renders the pages: templates, their filters, and what every page shows.

:func:`page` renders the answer to a request, :func:`render` a template alone. Everything is
escaped, and figures are formatted by ``util.units``.
"""

from __future__ import annotations

import re
from contextvars import ContextVar
from datetime import UTC, datetime, tzinfo
from functools import cache
from typing import Any, Final, NamedTuple
from urllib.parse import quote
from zoneinfo import ZoneInfo

from jinja2 import Environment, PackageLoader, StrictUndefined
from markdown_it import MarkdownIt
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse

import jobsight
from jobsight.access.viewer import NOBODY, viewer_of
from jobsight.model import SECOND
from jobsight.reports.gpu import LOW, MANY, conspicuous_first, gpu_remark, gpu_tone
from jobsight.reports.report import describe_state, group_title, quality_text, tone_of
from jobsight.store.rollups.usage import KINDS
from jobsight.text import readable_text
from jobsight.util import units
from jobsight.web.language import LANGUAGES, catalogue, language_of
from jobsight.web.messages import SCRIPT_TEXTS


class NavigationEntry(NamedTuple):
    """A link at the top of every page."""

    #: What a template sets as ``section`` to be marked as the current page.
    section: str
    address: str
    title: str
    for_staff: bool = False
    #: Not for viewers of pseudonyms.
    named: bool = False


#: The links at the top of every page, in their order.
NAVIGATION: Final = (
    NavigationEntry("home", "/", "Home"),
    NavigationEntry("jobs", "/jobs", "Jobs"),
    NavigationEntry("clusters", "/clusters", "Clusters"),
    NavigationEntry("users", "/users", "Users", named=True),
    NavigationEntry("accounts", "/accounts", "Accounts", named=True),
    NavigationEntry("software", "/software", "Software"),
    NavigationEntry("findings", "/findings", "Findings"),
    NavigationEntry("operations", "/operations", "Operations", for_staff=True),
    NavigationEntry("help", "/help", "Help"),
)


def page(request: Request, template: str, **context: Any) -> HTMLResponse:
    """Render a page for the viewer of a request, in the viewer's language."""
    # A proxy may serve the pages under a path prefix, which every link must include.
    root = request.scope.get("root_path", "")
    viewer, language = viewer_of(request.scope), language_of(request.scope)
    token = _ZONE.set(find_zone(viewer.preferences.time_zone))
    try:
        text = render(template, language=language, root=root, viewer=viewer, **context)
    finally:
        _ZONE.reset(token)
    return HTMLResponse(text, headers={"Vary": "Accept-Language, Cookie"})


def markdown(text: str) -> Markup:
    """Markdown as HTML. HTML in the text is escaped: a site writes rules, not pages."""
    rendered = MarkdownIt("commonmark", {"html": False}).enable("table").render(text)
    # Pages of other rules are files in the documents and addresses here.
    return Markup(re.sub(r'href="([a-z0-9-]+)\.md"', r'href="\1"', rendered))


class State(NamedTuple):
    """The text of a state, and its colour class."""

    word: str
    tone: str


def state_of(state: str, text: str = "") -> State:
    """The text of a state with a capital letter."""
    text = readable_text(text or describe_state(state, None, None))
    return State(text[:1].upper() + text[1:], tone_of(state))


def machine_time(moment: int) -> str:
    """A time for the ``datetime`` attribute of a ``<time>`` element."""
    try:
        return datetime.fromtimestamp(moment // SECOND, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return ""


#: The time zone of the viewer of the page that is rendered. Macros of templates do not get the
#: context of their page.
_ZONE: Final[ContextVar[tzinfo]] = ContextVar("zone", default=UTC)


@cache
def find_zone(name: str | None) -> tzinfo:
    """A time zone by its name in the tz database; UTC if there is none of that name."""
    try:
        return ZoneInfo(name) if name else UTC
    except (KeyError, ValueError, OSError):
        return UTC


def local_moment(time: int | None) -> str:
    """A time in the zone of the viewer."""
    return units.format_time(time, _ZONE.get())


def has_zone() -> bool:
    """Whether the viewer has another time zone than UTC, which is then shown as well."""
    return _ZONE.get() is not UTC


def percent(share: float | None) -> str:
    """A share as the width of a bar: 0 to 100."""
    # NaN compares false with everything.
    if share is None or not share > 0:
        return "0"
    return f"{min(share, 1.0) * 100:.2f}"


def path_pieces(path: str) -> tuple[str, str]:
    """Split a path into directory and file; only the directory is truncated on the page."""
    directory, slash, file = path.rpartition("/")
    return directory + slash, file


def metric_value(value: float | None, unit: str) -> str:
    """Format a value of a time series in a unit of the table of metrics."""
    if not units.is_known(value):
        return units.UNKNOWN
    match unit:
        case "bytes":
            return units.format_bytes(value)
        case "bytes per second":
            return units.format_byte_rate(value)
        case "cores":
            return units.format_cores(value)
        case "count per second":
            return f"{units.format_count(round(value, 2))}/s"
        case "nanoseconds":
            return units.format_duration(round(value))
        case _:
            return units.format_count(round(value, 2))


def readable_lines(text: str) -> str:
    """A command with its line breaks; backslashes are not doubled, so that it can be copied."""
    return "\n".join(readable_text(line).replace("\\\\", "\\") for line in text.split("\n"))


def readable_name(text: str | None) -> str | None:
    return None if text is None else readable_text(text)


def path_of_run(run: str) -> str:
    return quote(run, safe=":+")


def path_segment(name: str) -> str:
    """A name as one segment of an address; unlike Jinja's urlencode, a slash is escaped."""
    return quote(name, safe="")


@cache
def environment(language: str = LANGUAGES[0]) -> Environment:
    """The Jinja environment of a language."""
    jinja = Environment(
        extensions=["jinja2.ext.i18n"],
        loader=PackageLoader("jobsight.web"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    # mypy does not know what the extension adds.
    jinja.install_gettext_translations(  # type: ignore[attr-defined]
        catalogue(language), newstyle=True
    )
    jinja.globals.update(
        language=language,
        # English texts are in the scripts themselves.
        script_texts={
            text: catalogue(language).gettext(text)
            for text in (() if language == LANGUAGES[0] else SCRIPT_TEXTS)
        },
        has_zone=has_zone,
        version=jobsight.__version__,
        root="",
        viewer=NOBODY,
        navigation=NAVIGATION,
        many_gpus=MANY,
        low_gpu_share=LOW,
        unnamed_software=frozenset(KINDS.values()),
        format_count=units.format_count,
        format_bytes=units.format_bytes,
    )
    jinja.filters.update(
        bytes=units.format_bytes,
        duration=units.format_duration,
        share=units.format_share,
        count=units.format_count,
        cores=units.format_cores,
        hours=units.format_hours,
        moment=units.format_time,
        local_moment=local_moment,
        # Of a word that may be no message, and may contain a per cent sign.
        translated=catalogue(language).gettext,
        machine_time=machine_time,
        percent=percent,
        state_of=state_of,
        path_pieces=path_pieces,
        metric_value=metric_value,
        energy=units.format_energy,
        gpu_tone=gpu_tone,
        gpu_remark=gpu_remark,
        conspicuous_first=conspicuous_first,
        path_of_run=path_of_run,
        path_segment=path_segment,
        list_twice=lambda text: (text, text),
        readable=readable_name,
        readable_lines=readable_lines,
        group_title=group_title,
        quality_text=quality_text,
    )
    return jinja


def render(template: str, *, language: str = LANGUAGES[0], **context: Any) -> str:
    """Render a template of this package."""
    return environment(language).get_template(template).render(**context)
