"""schemathesis asks the API what its description allows, and much that it does not."""

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import Case, GenerationMode
from schemathesis.specs.openapi.checks import (
    ignored_auth,
    negative_data_rejection,
    positive_data_acceptance,
)

from jobsight.access.viewer import Role
from jobsight.config.settings import ServerSettings
from jobsight.model import SECOND
from jobsight.server.app import create_app
from jobsight.store.accounts.accounts import UserAccounts
from jobsight.store.accounts.tokens import UserTokens
from jobsight.store.store import Store
from jobsight.transport.wire import CONTENT_TYPE
from tests.examples import examples
from tests.server.conftest import TOKEN
from tests.server.site import fill

HEADERS = {"Authorization": f"Bearer {TOKEN}", "Host": "127.0.0.1"}
OPERATIONS = [
    ("/api/v1/jobs", "GET"),
    ("/api/v1/jobs/{run}", "GET"),
    ("/api/v1/jobs/{run}/series", "GET"),
    ("/api/v1/jobs/{run}/report.pdf", "GET"),
    ("/api/v1/jobs/{run}/report.html", "GET"),
    ("/api/v1/jobs/{run}/plots/{name}.svg", "GET"),
    ("/api/v1/jobs/{run}/explain", "GET"),
    ("/api/v1/jobs/{run}/fit", "GET"),
    ("/api/v1/jobs/{run}/findings/{kind}/acknowledge", "POST"),
    ("/api/v1/jobs/{run}/findings/{kind}/not-helpful", "POST"),
    ("/api/v1/jobs/{run}/findings/{kind}/reopen", "POST"),
    ("/api/v1/findings", "GET"),
    ("/api/v1/findings/summary", "GET"),
    ("/api/v1/findings/effect", "GET"),
    ("/api/v1/metrics", "GET"),
    ("/api/v1/health", "GET"),
    ("/api/v1/usage", "GET"),
    ("/api/v1/software", "GET"),
    ("/api/v1/discovery", "GET"),
    ("/api/v1/jobs/{run}/programs", "GET"),
    ("/api/v1/jobs/{run}/software", "GET"),
    ("/api/v1/jobs/{run}/steps", "GET"),
    ("/api/v1/jobs/{run}/nodes", "GET"),
    ("/api/v1/jobs/{run}/gpus", "GET"),
    ("/api/v1/jobs/{run}/findings", "GET"),
    ("/api/v1/jobs/{run}/properties", "GET"),
    ("/api/v1/jobs/{run}/properties", "PATCH"),
    ("/api/v1/jobs/{run}/properties/{name}", "PUT"),
    ("/api/v1/jobs/{run}/properties/{name}", "DELETE"),
    ("/api/v1/jobs/{run}/samples", "GET"),
    ("/api/v1/arrays/{array}", "GET"),
    ("/api/v1/scripts", "GET"),
    ("/api/v1/scripts/{key}", "GET"),
    ("/api/v1/clusters", "GET"),
    ("/api/v1/clusters/{cluster}", "GET"),
    ("/api/v1/clusters/{cluster}/nodes/{node}", "GET"),
    ("/api/v1/nodes", "GET"),
    ("/api/v1/nodes/{cluster}/{node}/series", "GET"),
    ("/api/v1/partitions", "GET"),
    ("/api/v1/reservations", "GET"),
    ("/api/v1/qos", "GET"),
    ("/api/v1/gpus", "GET"),
    ("/api/v1/gpus/{gpu}", "GET"),
    ("/api/v1/users", "GET"),
    ("/api/v1/users/{user}", "GET"),
    ("/api/v1/accounts", "GET"),
    ("/api/v1/accounts/{account}", "GET"),
    ("/api/v1/batches", "POST"),
]
schemathesis.serializer.alias(CONTENT_TYPE, "application/octet-stream")
BARE = tuple(f"/api/v1/{name}" for name in ("metrics", "health", "software", "clusters", "gpus"))
QUESTIONS = [
    (path, method, mode)
    for path, method in OPERATIONS
    for mode in GenerationMode
    # They take no parameters that could be wrong.
    if path not in BARE or mode != GenerationMode.NEGATIVE
]
#: The store behind the schema.
SITE: list[Store] = []
PLAIN = ("/api/v1/jobs", "/api/v1/metrics")


@pytest.fixture(scope="module")
def schema(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with Store.open(tmp_path_factory.mktemp("schema") / "store.db") as store:
        fill(store)
        SITE[:] = [store]
        # Clockwork's routes share paths with those of clusters. That of a user is petricore's where
        # its routes are switched on, in its own form.
        switched_on = ServerSettings(clockwork_routes=True)
        app = create_app(store, TOKEN, delay=0, settings=switched_on)
        yield schemathesis.openapi.from_asgi("/api/v1/openapi.json", app, headers=HEADERS)


# The description said application/octet-stream, and agents send another type.
def test_a_batch_has_the_content_type_that_agents_send(schema: Any) -> None:
    body = schema["/api/v1/batches"]["POST"].definition.raw["requestBody"]
    assert list(body["content"]) == [CONTENT_TYPE]


def test_every_operation_is_asked(schema: Any) -> None:
    described = {(path, method.upper()) for path in schema for method in schema[path]}
    assert described == set(OPERATIONS)


@pytest.mark.parametrize(("path", "method", "mode"), QUESTIONS)
def test_answers_are_as_described(
    schema: Any, path: str, method: str, mode: GenerationMode
) -> None:
    ask(schema, path, method, mode, HEADERS, 40 if path in PLAIN else 20)


def ask(
    schema: Any,
    path: str,
    method: str,
    mode: GenerationMode,
    headers: dict[str, str],
    number: int,
) -> None:
    operation = schema[path][method]

    @given(case=operation.as_strategy(generation_mode=mode))
    @settings(
        max_examples=examples(number),
        deadline=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    def ask_one(case: Case) -> None:
        # The right token stands over whatever was made up; test_access tries the wrong ones.
        case.headers = {**(case.headers or {}), **headers}
        # A list or object in an address is a text there, so some "wrong" questions are right. And a
        # schema cannot say what a date, a cursor or a packed batch is: those are refused beyond it.
        excluded = [ignored_auth, negative_data_rejection]
        is_plain = path in PLAIN and headers is HEADERS and "cursor" not in (case.query or {})
        excluded += [positive_data_acceptance] * (not is_plain)
        case.call_and_validate(excluded_checks=excluded)

    ask_one()


#: In `make test` users ask, who see least; in `make test-long` every role.
ROLES = [
    Role.USER,
    *(
        pytest.param(role, marks=pytest.mark.long)
        for role in (Role.COORDINATOR, Role.MENTOR, Role.STAFF, Role.AUDITOR)
    ),
]


@pytest.fixture(scope="module")
def tokens(schema: Any) -> dict[Role, str]:
    """A token with scope write of an account of each role."""
    database = SITE[0].database
    found = {}
    for role in Role:
        # Alice has runs.
        name = "alice" if role is Role.USER else f"a-{role}"
        accounts = ["physics"] if role in (Role.COORDINATOR, Role.MENTOR) else []
        UserAccounts(database).add(name, role, accounts=accounts)
        _, found[role] = UserTokens(database).add(name, "write", 3600 * SECOND)
    return found


@pytest.mark.parametrize("role", ROLES)
def test_answers_are_as_described_for_a_role(
    schema: Any, tokens: dict[Role, str], role: Role
) -> None:
    headers = {**HEADERS, "Authorization": f"Bearer {tokens[role]}"}
    for path, method in OPERATIONS:
        # Drawing takes long, and is the same for all roles.
        if not path.endswith((".pdf", ".svg")):
            ask(schema, path, method, GenerationMode.POSITIVE, headers, 5)


@pytest.mark.long
@pytest.mark.parametrize("role", Role)
def test_wrong_requests_of_a_role_are_refused_as_described(
    schema: Any, tokens: dict[Role, str], role: Role
) -> None:
    headers = {**HEADERS, "Authorization": f"Bearer {tokens[role]}"}
    for path, method, mode in QUESTIONS:
        if mode is GenerationMode.NEGATIVE and not path.endswith((".pdf", ".svg")):
            ask(schema, path, method, mode, headers, 5)
