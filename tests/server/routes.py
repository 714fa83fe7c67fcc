"""The routes of an application, as its router has them."""

from typing import Any


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
