"""Sign-in by OpenID Connect with a certified provider, and by a directory and a proxy."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec
import pytest
from joserfc import jwt
from joserfc.jwk import KeySet, OctKey, RSAKey
from starlette.testclient import TestClient

from jobsight.access.oidc import OidcClient, OidcError
from jobsight.config.settings import AccessSettings, LdapSettings, OidcSettings, ProxySettings
from jobsight.errors import ConfigError
from jobsight.server.app import create_app
from jobsight.store.accounts.accounts import UserAccounts
from jobsight.store.store import Store
from tests.access import directory, issuer
from tests.ports import free_port
from tests.server.auth.test_sessions import jobs, sign_in
from tests.server.conftest import SETTINGS, TOKEN

PAGES = "http://127.0.0.1:8080"


def client_of(store: Store, access: AccessSettings, address: str = "127.0.0.1") -> TestClient:
    app = create_app(store, TOKEN, delay=0, settings=SETTINGS, access=access)
    return TestClient(app, base_url=PAGES, follow_redirects=False, client=(address, 50000))


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if not issuer.is_installed():
        pytest.skip("no oidc-provider; scripts/npm-packages installs it where there is npm")
    redirect = f"{PAGES}/sign-in/oidc/return"
    with issuer.running(redirect, tmp_path_factory.mktemp("issuer")) as running:
        yield running


def settings_of(address: str, folder: Path, **changes: Any) -> OidcSettings:
    secret = folder / "secret"
    secret.write_text(f"{issuer.SECRET}\n")
    values: dict[str, Any] = {
        "issuer": address,
        "client_id": "jobsight",
        "client_secret_file": str(secret),
        "url": PAGES,
        "roles": {"hpc-staff": "staff"},
    }
    return OidcSettings(**(values | changes))


def come_back(client: TestClient, user: str) -> Any:
    begun = client.get("/sign-in/oidc?next=/jobs/12")
    assert begun.status_code == 303
    query = parse_qs(urlsplit(begun.headers["location"]).query)
    assert query["code_challenge_method"] == ["S256"]
    assert "SameSite=lax" in begun.headers["set-cookie"]
    returned = urlsplit(issuer.sign_in_at(begun.headers["location"], user))
    return client.get(f"{returned.path}?{returned.query}")


def test_users_and_roles_by_their_groups(address: str, filled: Store, tmp_path: Path) -> None:
    access = AccessSettings(oidc=settings_of(address, tmp_path, title="Sign in at the centre"))
    client = client_of(filled, access)
    assert "Sign in at the centre" in client.get("/sign-in").text
    answer = come_back(client, "alice")
    assert (answer.status_code, answer.headers["location"]) == (303, "/jobs/12")
    assert jobs(client) == [12]
    # The same address again: the code was used, and the cookie of the sign-in is gone.
    assert client.get(str(answer.url.raw_path, "ascii")).status_code == 401
    staff = client_of(filled, access)
    assert come_back(staff, "carol").status_code == 303
    assert jobs(staff) == [12, 13]
    account = UserAccounts(filled.database).get("carol")
    assert (account.origin, account.role, account.password_hash) == ("oidc", "staff", None)
    assert account.last_sign_in is not None
    UserAccounts(filled.database).disable("carol")
    assert staff.get("/api/v1/jobs").status_code == 401
    assert "disabled" in come_back(staff, "carol").text


def test_who_may_not_sign_in(address: str, filled: Store, tmp_path: Path) -> None:
    access = AccessSettings(oidc=settings_of(address, tmp_path, only_groups=True))
    answer = come_back(client_of(filled, access), "alice")
    assert (answer.status_code, "none of the groups" in answer.text) == (401, True)
    assert UserAccounts(filled.database).find("alice") is None
    missing = AccessSettings(oidc=settings_of(address, tmp_path, user_claim="nickname"))
    assert "nickname" in come_back(client_of(filled, missing), "alice").text


def test_a_sign_in_of_another_browser(address: str, filled: Store, tmp_path: Path) -> None:
    """Without the cookie of the browser that began it, a reply of the issuer opens nothing."""
    access = AccessSettings(oidc=settings_of(address, tmp_path))
    client = client_of(filled, access)
    begun = client.get("/sign-in/oidc")
    returned = urlsplit(issuer.sign_in_at(begun.headers["location"], "carol"))
    victim = client_of(filled, access)
    for path in (f"{returned.path}?{returned.query}", "/sign-in/oidc/return", "/sign-in/oidc/x"):
        assert victim.get(path).status_code == 401
    victim.get("/sign-in/oidc")
    answer = victim.get(f"{returned.path}?{returned.query}")
    assert (answer.status_code, "not begun in this browser" in answer.text) == (401, True)
    assert client.post("/sign-in/oidc").status_code == 405


def test_wrong_secret_and_an_issuer_that_is_away(
    address: str, filled: Store, tmp_path: Path
) -> None:
    settings = settings_of(address, tmp_path)
    (tmp_path / "secret").write_text("wrong")
    answer = come_back(client_of(filled, AccessSettings(oidc=settings)), "alice")
    assert (answer.status_code, "invalid_client" in answer.text) == (401, True)
    away = settings_of("http://127.0.0.1:9", tmp_path, timeout=1)
    answer = client_of(filled, AccessSettings(oidc=away)).get("/sign-in/oidc")
    assert (answer.status_code, "does not answer" in answer.text) == (401, True)
    other = settings_of(f"{address}/", tmp_path)
    assert client_of(filled, AccessSettings(oidc=other)).get("/sign-in/oidc").status_code == 303


def test_a_provider_that_goes_away_and_comes_back(filled: Store, tmp_path: Path) -> None:
    if not issuer.is_installed():
        pytest.skip("no oidc-provider; scripts/npm-packages installs it where there is npm")
    redirect, port = f"{PAGES}/sign-in/oidc/return", free_port()
    with issuer.running(redirect, tmp_path, port) as address:
        access = AccessSettings(oidc=settings_of(address, tmp_path, timeout=5))
        before, between = client_of(filled, access), client_of(filled, access)
        assert come_back(before, "alice").status_code == 303
        begun = between.get("/sign-in/oidc?next=/jobs/12")
        returned = urlsplit(issuer.sign_in_at(begun.headers["location"], "alice"))
    # The code is there, and nobody who exchanges it.
    answer = between.get(f"{returned.path}?{returned.query}")
    assert (answer.status_code, "does not answer" in answer.text) == (401, True)
    assert between.get("/api/v1/jobs").status_code == 401
    # Who has signed in stays so.
    assert jobs(before) == [12]
    answer = between.get("/sign-in/oidc")
    assert answer.status_code in (303, 401)
    with issuer.running(redirect, tmp_path, port):
        assert come_back(between, "alice").status_code == 303
        assert jobs(between) == [12]


KEY = RSAKey.generate_key(2048, {"kid": "1", "alg": "RS256", "use": "sig"})


class Forged(OidcClient):
    """A client of an issuer whose documents the test writes."""

    def __init__(self, folder: Path, token: str) -> None:
        super().__init__(settings_of("https://issuer.example", folder), b"key")
        self.token = token

    def _document(self, method: str, address: str, *more: Any, **named: Any) -> dict[str, Any]:
        base = "https://issuer.example"
        if address.endswith("openid-configuration"):
            return {
                "issuer": base,
                "authorization_endpoint": f"{base}/a",
                "token_endpoint": f"{base}/t",
                "jwks_uri": f"{base}/k",
            }
        if address.endswith("/k"):
            return KeySet([KEY]).as_dict(private=False)  # type: ignore[return-value]
        return {"id_token": self.token}


def claims(nonce: str, **changes: Any) -> dict[str, Any]:
    now = int(time.time())
    made = {
        "iss": "https://issuer.example",
        "aud": "jobsight",
        "sub": "1",
        "nonce": nonce,
        "iat": now,
        "exp": now + 60,
        "preferred_username": "alice",
        "groups": ["hpc-staff"],
    }
    return {name: value for name, value in (made | changes).items() if value is not None}


@pytest.mark.parametrize(
    ("changes", "valid"),
    [
        ({}, True),
        ({"iss": "https://evil.example"}, False),
        ({"aud": "other"}, False),
        ({"aud": ["jobsight", "other"], "azp": "other"}, False),
        ({"nonce": "other"}, False),
        ({"nonce": None}, False),
        ({"exp": int(time.time()) - 120}, False),
        ({"exp": None}, False),
        ({"sub": None}, False),
    ],
)
def test_id_tokens_are_verified(tmp_path: Path, changes: dict[str, Any], valid: bool) -> None:
    client = Forged(tmp_path, "")
    address, cookie = client.begin("/")
    query = {name: values[0] for name, values in parse_qs(urlsplit(address).query).items()}
    made = claims(query["nonce"]) | changes
    made = {name: value for name, value in made.items() if value is not None}
    client.token = jwt.encode({"alg": "RS256", "kid": "1"}, made, KEY)
    reply = {"state": query["state"], "code": "x"}
    if valid:
        user, target = client.finish(reply, cookie)
        assert (user.name, user.groups, target) == ("alice", ("hpc-staff",), "/")
    else:
        with pytest.raises(OidcError):
            client.finish(reply, cookie)


def test_other_algorithms_and_keys_are_refused(tmp_path: Path) -> None:
    client = Forged(tmp_path, "")
    address, cookie = client.begin("/")
    query = {name: values[0] for name, values in parse_qs(urlsplit(address).query).items()}
    reply = {"state": query["state"], "code": "x"}
    made = claims(query["nonce"])
    secret = OctKey.import_key(issuer.SECRET)
    other = RSAKey.generate_key(2048, {"kid": "1"})
    encoded = msgspec.json.encode(made)
    header = msgspec.json.encode({"alg": "none"})
    unsigned = f"{_base64(header)}.{_base64(encoded)}."
    for token in (
        jwt.encode({"alg": "HS256"}, made, secret),
        jwt.encode({"alg": "RS256", "kid": "1"}, made, other),
        unsigned,
        "nonsense",
        None,
    ):
        client.token = token  # type: ignore[assignment]
        with pytest.raises(OidcError):
            client.finish(reply, cookie)
    with pytest.raises(OidcError, match="not begun"):
        client.finish(reply, cookie[:-1] + ("0" if cookie[-1] != "0" else "1"))
    with pytest.raises(OidcError, match="refuses the sign-in: access_denied"):
        client.finish({"state": query["state"], "error": "access_denied"}, cookie)
    with pytest.raises(OidcError, match="another issuer"):
        client.finish(reply | {"iss": "https://evil.example"}, cookie)


def _base64(data: bytes) -> str:
    import base64

    return base64.urlsafe_b64encode(data).decode().rstrip("=")


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"issuer": "https://x"}, "client_id: is required"),
        ({"issuer": "x", "client_id": "a", "url": "https://y"}, "issuer: expected a URL"),
        (
            {"issuer": "https://x", "client_id": "a", "url": "https://y", "scopes": ["profile"]},
            "openid",
        ),
    ],
)
def test_wrong_settings_of_oidc(values: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        OidcSettings(**values)


@pytest.mark.skipif(not directory.is_installed(), reason="no slapd; apt-get install slapd")
def test_the_password_of_a_directory(filled: Store, tmp_path: Path) -> None:
    with directory.running(tmp_path) as running:
        settings = LdapSettings(
            url=running.plain,
            ca=running.authority,
            bind_template=f"uid={{user}},ou=people,{directory.SUFFIX}",
            group_base=f"ou=groups,{directory.SUFFIX}",
            roles={"hpc-staff": "staff"},
        )
        client = client_of(filled, AccessSettings(ldap=settings))
        assert sign_in(client, "alice", "wrong") == 401
        assert sign_in(client, "alice", directory.PASSWORD) == 303
        assert jobs(client) == [12]
        assert sign_in(client, "carol", directory.PASSWORD) == 303
        assert jobs(client) == [12, 13]
    assert sign_in(client, "carol", directory.PASSWORD) == 503
    assert UserAccounts(filled.database).get("carol").origin == "ldap"


PROXY = ProxySettings(
    addresses=["127.0.0.1", "10.0.0.0/8"], groups_header="X-Groups", roles={"hpc-staff": "staff"}
)


def test_the_header_of_a_trusted_proxy(filled: Store) -> None:
    access = AccessSettings(proxy=PROXY)
    for address in ("127.0.0.1", "10.1.2.3"):
        client = client_of(filled, access, address)
        client.headers["X-Remote-User"] = "alice"
        assert jobs(client) == [12]
        client.headers["X-Groups"] = "others; hpc-staff"
        assert jobs(client) == [12, 13]
        client.headers["X-Groups"] = ""
        assert jobs(client) == [12]
    assert client_of(filled, access).get("/api/v1/jobs").status_code == 401
    stranger = client_of(filled, access, "192.0.2.1")
    stranger.headers["X-Remote-User"] = "alice"
    answer = stranger.get("/api/v1/jobs")
    assert (answer.status_code, "from a proxy only" in answer.text) == (400, True)
    for name in ("", "a b", "x" * 100):
        client.headers["X-Remote-User"] = name
        assert client.get("/api/v1/jobs").status_code in (400, 401)
    UserAccounts(filled.database).disable("alice")
    client.headers["X-Remote-User"] = "alice"
    assert client.get("/api/v1/jobs").status_code == 403


def test_a_change_through_a_proxy_needs_the_token_of_the_form(filled: Store) -> None:
    client = client_of(filled, AccessSettings(proxy=PROXY))
    client.headers["X-Remote-User"] = "alice"
    path = "/api/v1/jobs/12/findings/none/acknowledge"
    assert client.post(path, json={"user": "alice"}).status_code == 403
    from tests.server.auth.test_sessions import csrf_of

    headers = {"X-CSRF-Token": csrf_of(client)}
    assert client.post(path, json={"user": "alice"}, headers=headers).status_code == 404


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"addresses": ["x"]}, "is not an address"),
        ({"addresses": ["0.0.0.0/0"]}, "would trust the header of everybody"),
        ({"addresses": ["127.0.0.1"], "header": "a b"}, "name of a header"),
        ({"addresses": ["127.0.0.1"], "roles": {"a": "staff"}}, "roles: need groups_header"),
    ],
)
def test_wrong_settings_of_a_proxy(values: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        ProxySettings(**values)
