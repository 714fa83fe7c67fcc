"""Help for every figure, and what is kept of a job and why."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from typing import Final

from fastapi import APIRouter, HTTPException
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse

from jobsight.metrics import METRICS, NODE_METRICS
from jobsight.web.language import LANGUAGES, language_of
from jobsight.web.render import markdown, page

#: The topics that are texts, with their titles; "metrics" is made from the table of metrics.
TOPICS: Final = {
    "figures": "What the figures mean",
    "metrics": "Metrics",
    "privacy": "What is kept, and why",
}


def add_routes(router: APIRouter) -> None:
    """Add the routes of the help."""

    @router.get("/help")
    def overview(request: Request) -> HTMLResponse:
        return page(request, "help.html", topics=TOPICS)

    @router.get("/help/{topic}")
    def topic(request: Request, topic: str) -> HTMLResponse:
        if topic == "metrics":
            return page(
                request, "help_metrics.html", metrics=[*METRICS.values(), *NODE_METRICS.values()]
            )
        if topic not in TOPICS:
            known = ", ".join(TOPICS)
            raise HTTPException(404, f"there is no help on {topic[:100]!r}; expected {known}")
        return page(
            request,
            "help_topic.html",
            title=TOPICS[topic],
            text=help_text(topic, language_of(request.scope)),
        )


@cache
def help_text(topic: str, language: str = LANGUAGES[0]) -> Markup:
    """The text of a topic, whose headings are addresses: ``{name}`` at the end, or the text."""
    suffix = "" if language == LANGUAGES[0] else f".{language}"
    text = files("jobsight.web").joinpath("help", f"{topic}{suffix}.md").read_text()
    return Markup(re.sub(r"<h2>(.*?)(?: \{([a-z-]+)\})?</h2>", _with_id, markdown(text)))


def _with_id(match: re.Match[str]) -> str:
    name = match[2] or re.sub(r"[^a-z0-9]+", "-", match[1].lower()).strip("-")
    return f'<h2 id="{name}">{match[1]}</h2>'
