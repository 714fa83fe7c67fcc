"""A report as one HTML page without scripts and external resources, for mail and for files."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from jobsight.reports.document import Document


@cache
def _template() -> Template:
    environment = Environment(
        loader=PackageLoader("jobsight.reports"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("mail.html")


def render_html(
    document: Document, *, lead: str = "", footer: Sequence[tuple[str, str]] = ()
) -> str:
    """The document as HTML. ``lead`` precedes it; ``footer`` has texts with their URLs."""
    return _template().render(document=document, lead=lead, footer=list(footer))
