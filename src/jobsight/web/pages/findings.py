"""The help pages of findings."""

from __future__ import annotations

from fastapi import APIRouter, HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse

from jobsight.findings.service import FindingsService
from jobsight.web.render import markdown, page


def add_routes(router: APIRouter, findings: FindingsService) -> None:
    """Add the routes of the help pages."""

    @router.get("/findings/{kind}")
    def finding(request: Request, kind: str) -> HTMLResponse:
        text = findings.help(kind)
        if text is None:
            raise HTTPException(404, f"no rule is called {kind[:100]!r}")
        return page(request, "finding.html", kind=kind, text=markdown(text))
