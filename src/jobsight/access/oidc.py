"""Sign-in by OpenID Connect: the authorization code flow with PKCE, state and nonce.

joserfc verifies the ID token; documents are fetched with our own bounded HTTP client. What a
browser must bring back is in a sealed cookie for ten minutes, so that any server process can
continue a sign-in that another one began.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
import time
from base64 import b64encode, urlsafe_b64decode, urlsafe_b64encode
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlencode

import msgspec

from jobsight.config.settings import OidcSettings
from jobsight.errors import ConfigError, JobsightError
from jobsight.transport.client import Address, HttpClient, HttpError, tls_context
from jobsight.util.decoding import decode_json_as

#: Seconds within which a sign-in must be completed.
LIFETIME: Final = 600
#: Bytes of a document of the issuer.
_MAX_DOCUMENT: Final = 2**20
#: Seconds after which the issuer's addresses and keys are read again.
_REFRESH: Final = 3600.0
#: Asymmetric algorithms only: "none", and the client's secret as a key, are refused.
_ALGORITHMS: Final = (
    "RS256",
    "RS384",
    "RS512",
    "PS256",
    "PS384",
    "PS512",
    "ES256",
    "ES384",
    "EdDSA",
)
#: Seconds by which the clocks of the issuer and this machine may differ.
_LEEWAY: Final = 60
_MAX_GROUPS: Final = 1000


class OidcError(JobsightError):
    """A sign-in failed."""


class Pending(msgspec.Struct):
    """A sign-in that a browser has begun."""

    state: str
    nonce: str
    verifier: str
    target: str
    created: int


class OidcUser(NamedTuple):
    """A user whom the issuer has authenticated."""

    name: str
    groups: tuple[str, ...]


class _Provider(NamedTuple):
    metadata: dict[str, Any]
    keys: Any
    read_at: float


class OidcClient:
    """The client of one issuer."""

    def __init__(self, settings: OidcSettings, key: bytes) -> None:
        """``key`` seals the cookie of a pending sign-in."""
        assert settings.issuer is not None
        assert settings.url is not None
        self._settings = settings
        self._issuer = settings.issuer.rstrip("/")
        self._redirect = f"{settings.url.rstrip('/')}/sign-in/oidc/return"
        self._key = hmac.digest(key, b"jobsight oidc", "sha256")
        self._secret: str | None = None
        if settings.client_secret_file is not None:
            file = Path(settings.client_secret_file).expanduser()
            try:
                self._secret = file.read_text().strip()
            except OSError as error:
                raise ConfigError(
                    f"access.oidc.client_secret_file: {file} cannot be read: {error.strerror}"
                ) from None
        self._http = HttpClient(
            Address.parse("access.oidc.issuer", settings.issuer),
            timeout=settings.timeout,
            tls=tls_context(settings.ca) if settings.issuer.startswith("https") else None,
            # Sign-ins are rare.
            keep_alive=False,
        )
        self._provider: _Provider | None = None
        self._mutex = threading.Lock()

    def begin(self, target: str) -> tuple[str, str]:
        """The address to which a browser is sent, and the value of the cookie it must return."""
        pending = Pending(
            state=secrets.token_urlsafe(24),
            nonce=secrets.token_urlsafe(24),
            verifier=secrets.token_urlsafe(48),
            target=target,
            created=int(time.time()),
        )
        query = {
            "response_type": "code",
            "client_id": self._settings.client_id,
            "redirect_uri": self._redirect,
            "scope": " ".join(self._settings.scopes),
            "state": pending.state,
            "nonce": pending.nonce,
            "code_challenge": _challenge(pending.verifier),
            "code_challenge_method": "S256",
        }
        address = self._discovered().metadata["authorization_endpoint"]
        joint = "&" if "?" in address else "?"
        return f"{address}{joint}{urlencode(query)}", self._seal(pending)

    def finish(self, query: dict[str, str], cookie: str) -> tuple[OidcUser, str]:
        """The user of a browser that the issuer sent back, and where it wanted to go."""
        pending = self._open(cookie)
        if not hmac.compare_digest(query.get("state", "").encode(), pending.state.encode()):
            raise OidcError("the sign-in was not begun in this browser")
        if "error" in query:
            reason = query.get("error_description") or query["error"]
            raise OidcError(f"the issuer refuses the sign-in: {reason[:200]}")
        issuer = query.get("iss")
        if issuer is not None and issuer.rstrip("/") != self._issuer:
            raise OidcError("the reply is of another issuer")
        tokens = self._exchange(query.get("code", ""), pending.verifier)
        claims = self._verify(tokens.get("id_token"), pending.nonce)
        wanted = {self._settings.user_claim, self._settings.groups_claim} - claims.keys()
        endpoint = self._discovered().metadata.get("userinfo_endpoint")
        if wanted and endpoint and tokens.get("access_token"):
            claims = self._user_info(endpoint, tokens["access_token"], claims["sub"]) | claims
        return self._user(claims), pending.target

    def _user(self, claims: dict[str, Any]) -> OidcUser:
        name = claims.get(self._settings.user_claim)
        if not isinstance(name, str) or not name:
            raise OidcError(
                f"the issuer names no user: the claim {self._settings.user_claim!r} is missing"
            )
        groups = claims.get(self._settings.groups_claim, ())
        if isinstance(groups, str):
            groups = groups.split()
        named = [str(group) for group in groups] if isinstance(groups, list | tuple) else []
        return OidcUser(name, tuple(named[:_MAX_GROUPS]))

    def _exchange(self, code: str, verifier: str) -> dict[str, Any]:
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": self._redirect,
            "client_id": self._settings.client_id or "",
            "code_verifier": verifier,
        }
        headers = {"Content-Type": "application/x-www-form-urlencoded"}
        if self._secret is not None:
            pair = f"{_quoted(self._settings.client_id or '')}:{_quoted(self._secret)}"
            headers["Authorization"] = f"Basic {b64encode(pair.encode()).decode()}"
        endpoint = self._discovered().metadata["token_endpoint"]
        return self._document("POST", endpoint, urlencode(form).encode(), headers)

    def _verify(self, token: object, nonce: str) -> dict[str, Any]:
        """The claims of an ID token of this issuer, for this client and this sign-in."""
        from joserfc import jwt
        from joserfc.errors import JoseError

        if not isinstance(token, str):
            raise OidcError("the issuer sent no ID token")
        for fresh in (False, True):
            provider = self._discovered(fresh=fresh)
            registry = jwt.JWTClaimsRegistry(
                leeway=_LEEWAY,
                iss={"essential": True, "value": provider.metadata["issuer"]},
                aud={"essential": True, "value": self._settings.client_id or ""},
                exp={"essential": True},
                iat={"essential": True},
                sub={"essential": True},
                nonce={"essential": True, "value": nonce},
            )
            try:
                claims = jwt.decode(token, provider.keys, algorithms=list(_ALGORITHMS)).claims
                registry.validate(claims)
            except (JoseError, ValueError) as error:
                # The issuer may have changed its keys.
                if fresh:
                    raise OidcError(f"the ID token is not valid: {_reason(error)}") from None
                continue
            party = claims.get("azp", self._settings.client_id)
            if party != self._settings.client_id:
                raise OidcError("the ID token is for another client")
            return dict(claims)
        raise AssertionError

    def _user_info(self, endpoint: str, token: str, subject: str) -> dict[str, Any]:
        headers = {"Authorization": f"Bearer {token}"}
        claims = self._document("GET", endpoint, None, headers)
        if claims.get("sub") != subject:
            raise OidcError("the issuer's user information is of another user")
        return claims

    def _discovered(self, *, fresh: bool = False) -> _Provider:
        """The issuer's addresses and keys."""
        from joserfc.errors import JoseError
        from joserfc.jwk import KeySet

        with self._mutex:
            known = self._provider
            now = time.monotonic()
            # At most once in ten seconds: anybody can cause a reply with an invalid token.
            if known is not None and now - known.read_at < (10 if fresh else _REFRESH):
                return known
            address = f"{self._issuer}/.well-known/openid-configuration"
            metadata = self._document("GET", address)
            if str(metadata.get("issuer", "")).rstrip("/") != self._issuer:
                raise OidcError(f"{address} is of another issuer")
            for name in ("authorization_endpoint", "token_endpoint", "jwks_uri"):
                if not isinstance(metadata.get(name), str):
                    raise OidcError(f"{address} has no {name}")
            try:
                document: Any = self._document("GET", metadata["jwks_uri"])
                keys = KeySet.import_key_set(document)
            except (JoseError, ValueError, KeyError) as error:
                raise OidcError(f"the issuer's keys cannot be used: {_reason(error)}") from None
            self._provider = _Provider(metadata, keys, now)
            return self._provider

    def _document(
        self,
        method: str,
        address: str,
        content: bytes | None = None,
        headers: dict[str, str] | None = None,
    ) -> dict[str, Any]:
        try:
            reply = self._http.request(
                method,
                address,
                content=content,
                headers={"Accept": "application/json"} | (headers or {}),
                max_size=_MAX_DOCUMENT,
            )
        except HttpError as error:
            raise OidcError(f"the issuer does not answer: {error}") from None
        try:
            document = decode_json_as(object, reply.body)
        except msgspec.DecodeError:
            document = None
        if reply.status != 200 or not isinstance(document, dict):
            detail = document.get("error", "") if isinstance(document, dict) else ""
            raise OidcError(f"the issuer answers with status {reply.status} {detail}".rstrip())
        return document

    def _seal(self, pending: Pending) -> str:
        data = msgspec.json.encode(pending)
        return f"{_base64(data)}.{hmac.new(self._key, data, 'sha256').hexdigest()}"

    def _open(self, cookie: str) -> Pending:
        text, _, digest = cookie.partition(".")
        try:
            data = urlsafe_b64decode(text.encode())
            if not hmac.compare_digest(hmac.new(self._key, data, "sha256").hexdigest(), digest):
                raise ValueError
            pending = msgspec.json.decode(data, type=Pending)
        except (ValueError, msgspec.DecodeError):
            raise OidcError("the sign-in was not begun in this browser") from None
        if time.time() - pending.created > LIFETIME:
            raise OidcError("the sign-in took longer than ten minutes")
        return pending


def _challenge(verifier: str) -> str:
    """RFC 7636, method S256."""
    return _base64(hashlib.sha256(verifier.encode()).digest()).rstrip("=")


def _base64(data: bytes) -> str:
    return urlsafe_b64encode(data).decode()


def _quoted(text: str) -> str:
    """As RFC 6749, section 2.3.1 requires it in the Authorization header."""
    return quote(text, safe="")


def _reason(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
