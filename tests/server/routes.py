"""The routes of an application, as its router has them."""

from typing import Any, Final

NUMBER: Final = "the number of a job"


def routes(app: Any) -> set[tuple[str, str]]:
    """The paths and methods of all routes of an application."""
    found: set[tuple[str, str]] = set()

    def walk(entries: Any) -> None:
        for route in entries:
            if hasattr(route, "effective_candidates"):
                walk(route.effective_candidates())
            else:
                found.update(
                    (route.path, one) for one in getattr(route, "methods", None) or ("GET",)
                )

    walk(app.router.routes)
    return found


#: What a change must have in its body for the route to look for its subject, ``NUMBER`` in the
#: place of a job. Forms are sent as such, everything else as JSON.
_BODIES: Final = {
    ("/api/v1/jobs/{run}/properties", "PATCH"): {"json": {"note": "text"}},
    ("/api/v1/jobs/{run}/properties/{name}", "PUT"): {"json": "text"},
    ("/jobs/{run}/findings/{kind}", "POST"): {"data": {"state": "acknowledged"}},
    ("/jobs", "POST"): {"data": {"columns": "run,user"}},
    **{
        (f"/api/v1/jobs/{{run}}/findings/{{kind}}/{reply}", "POST"): {"json": {"user": "alice"}}
        for reply in ("acknowledge", "not-helpful", "reopen")
    },
    ("/api/v1/clusters/jobs/user_props/set", "PUT"): {
        "json": {"job_id": NUMBER, "cluster_name": "alpha", "updates": {"note": "text"}}
    },
    ("/api/v1/clusters/jobs/user_props/delete", "PUT"): {
        "json": {"job_id": NUMBER, "cluster_name": "alpha", "keys": "note"}
    },
}


def body_of(path: str, method: str, number: int | str) -> dict[str, Any]:
    """The body of a valid request of a route about a job, as arguments of a client."""
    body = _BODIES.get((path, method), {})
    return {
        kind: {
            name: number if value == NUMBER else value for name, value in fields.items()
        } if isinstance(fields, dict) else fields
        for kind, fields in body.items()
    }  # fmt: skip
