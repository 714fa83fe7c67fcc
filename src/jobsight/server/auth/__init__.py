"""Authentication: the middleware in front of every page, file and API route.

Start reading with ``control``: :class:`AccessControl` finds out who makes a request, applies the
rule of its route, and passes it on with its viewer. ``sign_in`` opens sessions: with the server's
token or a one-time code (``codes``), a password, OpenID Connect. ``peers`` binds a session on
loopback to the user of the machine who opened it, ``attempts`` limits failed sign-ins,
``cluster_tokens`` looks up the tokens of agents.
"""

from jobsight.server.auth.cluster_tokens import REVOKED_WITHIN, TokenCache
from jobsight.server.auth.codes import CODE_LIFETIME, SignInCodes
from jobsight.server.auth.control import BATCHES, TOKEN_IN_SCOPE, AccessControl
from jobsight.server.auth.replies import HEADERS, RETRY_AFTER, drain, host_name, port_of

__all__ = [
    "BATCHES",
    "CODE_LIFETIME",
    "HEADERS",
    "RETRY_AFTER",
    "REVOKED_WITHIN",
    "TOKEN_IN_SCOPE",
    "AccessControl",
    "SignInCodes",
    "TokenCache",
    "drain",
    "host_name",
    "port_of",
]
