import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.testclient import TestClient

from jobsight.server.auth import CODE_LIFETIME, SignInCodes, host_name, port_of
from tests.server.conftest import TOKEN

ROUTES = [
    "/",
    "/jobs/12",
    "/api/v1/jobs",
    "/api/v1/jobs/12",
    "/api/v1/jobs/12/series",
    "/api/v1/metrics",
    "/api/v1/openapi.json",
    "/static/charts.js",
    "/docs",
    "/nothing/at/all",
]


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize(
    "headers", [{}, {"Authorization": "Bearer wrong"}, {"Cookie": "jobsight-8080=x"}]
)
def test_nothing_without_the_token(
    stranger: TestClient, path: str, headers: dict[str, str]
) -> None:
    answer = stranger.get(path, headers=headers)
    assert answer.status_code == 401
    assert "multiply" not in answer.text
    assert "alice" not in answer.text


@pytest.mark.parametrize("path", ["/api/v1/batches", "/api/v1/jobs", "/"])
def test_nothing_is_written_without_the_token(stranger: TestClient, path: str) -> None:
    assert stranger.post(path, content=b"x").status_code == 401


def test_what_everybody_is_told(stranger: TestClient) -> None:
    assert stranger.get("/healthz").text == "ok\n"
    assert stranger.get("/sign-in").status_code == 200
    assert stranger.get("/static/style.css").status_code == 200


def test_bearer_opens_everything(client: TestClient) -> None:
    for path in ROUTES[:7]:
        assert client.get(path).status_code == 200, path
    assert client.get("/nothing/at/all").status_code == 404


def test_the_address_with_a_code_signs_in(stranger: TestClient, codes: SignInCodes) -> None:
    answer = stranger.get(f"/jobs/12?a=1&code={codes.create()}")
    assert answer.status_code == 303
    assert answer.headers["location"] == "/jobs/12?a=1"
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert TOKEN not in cookie
    # The client keeps the cookie now, as a browser does.
    assert stranger.get("/").status_code == 200
    assert stranger.get("/api/v1/jobs").status_code == 200


def test_a_code_signs_one_browser_in(stranger: TestClient, codes: SignInCodes) -> None:
    code = codes.create()
    assert stranger.get(f"/?code={code}").status_code == 303
    # A second click in the same browser is no error, another browser is refused.
    assert stranger.get(f"/?code={code}").headers["location"] == "/"
    stranger.cookies.clear()
    answer = stranger.get(f"/?code={code}")
    assert answer.status_code == 401
    assert "was used before or has expired" in answer.text
    assert "set-cookie" not in answer.headers


def test_a_code_expires() -> None:
    now = 0.0
    codes = SignInCodes(clock=lambda: now)
    first, second = codes.create(), codes.create()
    now = CODE_LIFETIME - 1
    assert codes.redeem(first)
    now = CODE_LIFETIME
    assert not codes.redeem(second)


def test_the_number_of_codes_is_bounded() -> None:
    codes = SignInCodes()
    made = [codes.create() for _ in range(100)]
    assert [code for code in made if codes.redeem(code)] == made[-8:]


def test_the_token_is_not_accepted_in_an_address(stranger: TestClient) -> None:
    """An address ends up in the history, in links and in the logs of proxies."""
    for name in ("token", "code"):
        answer = stranger.get(f"/?{name}={TOKEN}")
        assert answer.status_code == 401
        assert "set-cookie" not in answer.headers


def test_the_form_signs_in(stranger: TestClient) -> None:
    wrong = stranger.post("/sign-in", data={"token": "wrong"})
    assert wrong.status_code == 401
    assert "token is invalid" in wrong.text
    right = stranger.post("/sign-in", data={"token": f" {TOKEN} "})
    assert (right.status_code, right.headers["location"]) == (303, "/")
    assert stranger.get("/").status_code == 200


def test_a_redirect_stays_on_this_server(stranger: TestClient, codes: SignInCodes) -> None:
    for path in ("//evil.example/", "/\\evil.example/"):
        answer = stranger.get(f"http://127.0.0.1:8080{path}?code={codes.create()}")
        assert answer.headers["location"].startswith("/evil") or answer.headers[
            "location"
        ].startswith("/%5C")


def test_a_cookie_cannot_write(stranger: TestClient) -> None:
    assert stranger.post("/sign-in", data={"token": TOKEN}).status_code == 303
    answer = stranger.post("/api/v1/batches", content=b"x")
    assert answer.status_code == 401
    assert "Bearer" in answer.json()["detail"]


def test_a_wrong_code_in_the_address(stranger: TestClient) -> None:
    answer = stranger.get("/?code=wrong")
    assert answer.status_code == 401
    assert "set-cookie" not in answer.headers


def test_the_form_is_short(stranger: TestClient) -> None:
    assert stranger.post("/sign-in", content=b"token=" + b"x" * 10_000).status_code == 413
    assert stranger.put("/sign-in").status_code == 405


@pytest.mark.parametrize(
    "host",
    [
        *("evil.example", "127.0.0.1.evil.example:8080", "", "[::2]", "[::1]evil", "[::1]:80evil"),
        *("127.0.0.1:1@evil", "localhost:80:80", "localhost:evil", "user@localhost", "[::1"),
    ],
)
def test_other_names_are_refused(client: TestClient, host: str) -> None:
    answer = client.get("/api/v1/jobs", headers={"Host": host})
    assert answer.status_code == 421
    assert "is not a host name of this server" in answer.json()["detail"]


@pytest.mark.parametrize("host", ["localhost:8080", "LOCALHOST", "[::1]:8080", "127.0.0.1"])
def test_the_names_of_loopback_are_taken(client: TestClient, host: str) -> None:
    assert client.get("/api/v1/jobs", headers={"Host": host}).status_code == 200


def test_parts_of_a_host() -> None:
    assert (host_name("[::1]:80"), port_of("[::1]:80")) == ("[::1]", "80")
    assert (host_name("a:81"), port_of("a:81")) == ("a", "81")
    assert (host_name("a"), port_of("a")) == ("a", "80")
    assert (host_name("a:"), port_of("a:")) == ("a", "80")


@given(st.text(alphabet="[]:@1a.-%/ ", max_size=12))
def test_a_host_is_a_name_and_a_port_or_nothing(host: str) -> None:
    name = host_name(host)
    assert not name or host in (name, f"{name}:", f"{name}:{port_of(host)}")
    assert not set("@%/ ") & set(name)


@pytest.mark.parametrize("path", ["/", "/api/v1/jobs", "/healthz", "/nothing"])
def test_headers_that_protect(client: TestClient, path: str) -> None:
    headers = client.get(path).headers
    assert "default-src 'self'" in headers["content-security-policy"]
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cache-control"] == "no-store"


def test_pages_say_errors_as_pages(client: TestClient) -> None:
    answer = client.get("/jobs/99")
    assert answer.status_code == 404
    assert answer.headers["content-type"].startswith("text/html")
