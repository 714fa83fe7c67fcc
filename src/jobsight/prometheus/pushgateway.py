"""A Pushgateway: groups that are replaced as a whole and taken away when they are over."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from urllib.parse import quote

from jobsight.errors import JobsightError
from jobsight.prometheus.exposition import PLAIN
from jobsight.transport.http import Web


class GatewayError(JobsightError):
    """The gateway answered, but did not do it."""


def group_path(job: str, labels: Mapping[str, str]) -> str:
    """The path of a group. A value that the path cannot hold is written in base 64."""
    parts = [_part("job", job), *(_part(name, value) for name, value in labels.items())]
    return "/metrics" + "".join(parts)


def _part(name: str, value: str) -> str:
    if value and "/" not in value:
        return f"/{name}/{quote(value, safe='')}"
    coded = base64.urlsafe_b64encode(value.encode()).decode().rstrip("=") or "="
    return f"/{name}@base64/{coded}"


class Pushgateway:
    """The two things that are done with a group. No answer is an OSError."""

    def __init__(self, web: Web) -> None:
        self._web = web

    def replace(self, group: str, text: bytes) -> None:
        """Put these series in the place of all that the group held: it is never empty."""
        self._do("PUT", group, text)

    def delete(self, group: str) -> None:
        self._do("DELETE", group, b"")

    def _do(self, method: str, group: str, body: bytes) -> None:
        reply = self._web.send(method, group, body, {"Content-Type": PLAIN})
        if not 200 <= reply.status < 300:
            text = reply.body.decode(errors="replace").strip()[:300]
            raise GatewayError(f"{self._web.name} answered {reply.status} to {method}: {text}")
