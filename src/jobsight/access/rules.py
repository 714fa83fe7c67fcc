"""Which viewers a route is for: one rule for every route of the server.

The access control applies the rule before the route runs. A rule decides whether the route answers
at all; what it shows is restricted by the visibility of the viewer inside its queries, or by
:func:`jobsight.access.policy.require`. A route without a rule is for staff, and a test fails
because of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from starlette.routing import compile_path

from jobsight.access.viewer import Viewer


class Rule(StrEnum):
    """Which viewers a route answers; others get the 404 of a route that does not exist."""

    #: Everybody, also without credentials.
    PUBLIC = "public"
    #: Whoever is signed in. It shows only what the viewer may see, or nothing of anybody.
    SIGNED_IN = "signed in"
    #: Whoever is signed in and sees names: about one user, script or text, or a change of it. An
    #: auditor gets the 404 of a route that does not exist.
    NAMED = "signed in, sees names"
    #: Whoever has an account; the server's token is nobody's account.
    OWN_ACCOUNT = "own account"
    #: Staff and auditors: about all users. An auditor gets pseudonyms.
    OVERSIGHT = "oversight"
    #: Staff only.
    STAFF = "staff"
    #: Agents with the token of their cluster or of the server.
    AGENTS = "agents"

    def permits(self, viewer: Viewer) -> bool:
        match self:
            case Rule.PUBLIC:
                return True
            case Rule.SIGNED_IN:
                return viewer.is_signed_in
            case Rule.NAMED:
                return viewer.is_signed_in and not viewer.pseudonyms
            case Rule.OWN_ACCOUNT:
                return viewer.name is not None
            case Rule.OVERSIGHT:
                return viewer.visibility.everything
            case Rule.STAFF:
                return viewer.is_staff
            case Rule.AGENTS:
                return viewer.has_server_token


#: By the path of the route, as FastAPI writes it.
RULES: Final[Mapping[str, Rule]] = {
    "/healthz": Rule.PUBLIC,
    "/sign-in": Rule.PUBLIC,
    "/sign-in/oidc": Rule.PUBLIC,
    "/sign-in/oidc/return": Rule.PUBLIC,
    "/sign-out": Rule.SIGNED_IN,
    "/static": Rule.SIGNED_IN,
    "/static/{file}": Rule.SIGNED_IN,
    "/static/style.css": Rule.PUBLIC,
    "/static/icon.svg": Rule.PUBLIC,
    # By the signature of its link.
    "/unsubscribe": Rule.PUBLIC,
    # Pages. Jobs, users and accounts are restricted by their queries and by the policy; clusters,
    # nodes and help show what `sinfo` shows everybody.
    "/": Rule.SIGNED_IN,
    "/jobs": Rule.SIGNED_IN,
    "/jobs.csv": Rule.SIGNED_IN,
    "/jobs.json": Rule.SIGNED_IN,
    "/jobs/{run}": Rule.SIGNED_IN,
    "/clusters": Rule.SIGNED_IN,
    "/clusters/{name}": Rule.SIGNED_IN,
    "/clusters/{name}/nodes": Rule.SIGNED_IN,
    "/clusters/{cluster}/nodes/{node}": Rule.SIGNED_IN,
    "/users": Rule.NAMED,
    "/users/{name:path}": Rule.NAMED,
    "/accounts": Rule.NAMED,
    "/accounts/{name:path}": Rule.NAMED,
    "/software": Rule.SIGNED_IN,
    "/software/{name:path}": Rule.SIGNED_IN,
    "/programs": Rule.SIGNED_IN,
    "/findings": Rule.SIGNED_IN,
    "/jobs/{run}/series.csv": Rule.SIGNED_IN,
    "/jobs/{run}/findings/{kind}": Rule.NAMED,
    "/arrays/{reference}": Rule.SIGNED_IN,
    "/scripts/{key}": Rule.NAMED,
    "/compare": Rule.SIGNED_IN,
    "/findings/{kind}": Rule.SIGNED_IN,
    "/help": Rule.SIGNED_IN,
    "/help/{topic}": Rule.SIGNED_IN,
    "/settings": Rule.OWN_ACCOUNT,
    "/operations": Rule.STAFF,
    "/operations/accounts": Rule.STAFF,
    # Agents and monitoring.
    "/api/v1/batches": Rule.AGENTS,
    "/api/v1/discovery": Rule.STAFF,
    "/api/v1/health": Rule.STAFF,
    "/metrics": Rule.STAFF,
    # The API. Jobs are restricted by their queries.
    "/api/v1/openapi.json": Rule.SIGNED_IN,
    "/api/v1/metrics": Rule.SIGNED_IN,
    "/api/v1/jobs": Rule.SIGNED_IN,
    "/api/v1/jobs/{run}": Rule.SIGNED_IN,
    "/api/v1/jobs/{run}/series": Rule.SIGNED_IN,
    "/api/v1/jobs/{run}/explain": Rule.NAMED,
    "/api/v1/jobs/{run}/fit": Rule.SIGNED_IN,
    "/api/v1/jobs/{run}/samples": Rule.SIGNED_IN,
    "/api/v1/jobs/{run}/programs": Rule.SIGNED_IN,
    "/api/v1/jobs/{run}/software": Rule.SIGNED_IN,
    "/api/v1/jobs/{run}/steps": Rule.SIGNED_IN,
    "/api/v1/jobs/{run}/nodes": Rule.SIGNED_IN,
    "/api/v1/jobs/{run}/gpus": Rule.SIGNED_IN,
    "/api/v1/jobs/{run}/findings": Rule.SIGNED_IN,
    "/api/v1/jobs/{run}/properties": Rule.NAMED,
    "/api/v1/jobs/{run}/properties/{name}": Rule.NAMED,
    "/api/v1/arrays/{array}": Rule.SIGNED_IN,
    "/api/v1/scripts": Rule.NAMED,
    "/api/v1/scripts/{key}": Rule.NAMED,
    "/api/v1/users": Rule.NAMED,
    "/api/v1/accounts": Rule.SIGNED_IN,
    "/api/v1/accounts/{account}": Rule.NAMED,
    # The scheduler shows these to everybody as well.
    "/api/v1/clusters": Rule.SIGNED_IN,
    "/api/v1/clusters/{cluster}": Rule.SIGNED_IN,
    "/api/v1/clusters/{cluster}/nodes/{node}": Rule.SIGNED_IN,
    "/api/v1/nodes": Rule.SIGNED_IN,
    # On a node with one job they are what that job did.
    "/api/v1/nodes/{cluster}/{node}/series": Rule.OVERSIGHT,
    "/api/v1/partitions": Rule.SIGNED_IN,
    "/api/v1/reservations": Rule.SIGNED_IN,
    "/api/v1/qos": Rule.SIGNED_IN,
    "/api/v1/gpus": Rule.SIGNED_IN,
    "/api/v1/gpus/{gpu}": Rule.SIGNED_IN,
    # Clockwork's routes.
    "/api/v1/clusters/jobs/list": Rule.NAMED,
    "/api/v1/clusters/jobs/one": Rule.NAMED,
    "/api/v1/clusters/jobs/user_props/get": Rule.NAMED,
    "/api/v1/clusters/jobs/user_props/set": Rule.NAMED,
    "/api/v1/clusters/jobs/user_props/delete": Rule.NAMED,
    "/api/v1/clusters/nodes/list": Rule.SIGNED_IN,
    "/api/v1/clusters/nodes/one": Rule.SIGNED_IN,
    "/api/v1/clusters/nodes/one/gpu": Rule.SIGNED_IN,
    "/api/v1/clusters/gpu/list": Rule.SIGNED_IN,
    "/api/v1/clusters/gpu/one": Rule.SIGNED_IN,
    "/api/v1/jobs/{run}/report.pdf": Rule.SIGNED_IN,
    "/api/v1/jobs/{run}/report.html": Rule.SIGNED_IN,
    "/api/v1/jobs/{run}/plots/{name}.svg": Rule.SIGNED_IN,
    "/api/v1/jobs/{run}/findings/{kind}/acknowledge": Rule.NAMED,
    "/api/v1/jobs/{run}/findings/{kind}/not-helpful": Rule.NAMED,
    "/api/v1/jobs/{run}/findings/{kind}/reopen": Rule.NAMED,
    "/api/v1/findings": Rule.SIGNED_IN,
    "/api/v1/findings/summary": Rule.SIGNED_IN,
    "/api/v1/findings/effect": Rule.OVERSIGHT,
    "/api/v1/usage": Rule.SIGNED_IN,
    "/api/v1/software": Rule.OVERSIGHT,
    # Petricore's routes.
    "/mail/{job}": Rule.NAMED,
    "/plot/{job}/{metric}": Rule.NAMED,
    "/pie/{job}": Rule.NAMED,
    "/pie/{job}/": Rule.NAMED,
    "/pdf/{job}": Rule.NAMED,
    "/api/v1/jobs/{job}/usage": Rule.NAMED,
    "/api/v1/users/{user}": Rule.NAMED,
}

_PATTERNS: Final = [(compile_path(path)[0], rule) for path, rule in RULES.items() if "{" in path]


def rule_of(path: str) -> Rule:
    """The rule of the route that a request's path leads to."""
    rule = RULES.get(path)
    if rule is not None:
        return rule
    return next((rule for pattern, rule in _PATTERNS if pattern.match(path)), Rule.STAFF)
