"""Addresses in messages, logs and files: without user names, passwords and tokens."""

from __future__ import annotations

import re
from typing import Final

#: What stands for an address of which no part is certain to be without a password.
HIDDEN: Final = "***"
_END_OF_AUTHORITY: Final = re.compile(r"[/?#\\]")


def without_credentials(address: str) -> str:
    """The address without user name, password, query and fragment; never raises.

    The text may be invalid: it is shown in the message that says so. It is therefore not parsed as
    a URL. If an @ follows the host, the text before it may be a password that contains a slash, and
    only the scheme is shown.
    """
    scheme, separator, rest = address.partition("://")
    if not separator:
        is_path = address.startswith("/") and not address.startswith("//")
        return address if is_path else address.rpartition("@")[2]
    authority = _END_OF_AUTHORITY.split(rest, maxsplit=1)[0]
    scheme = scheme.rpartition("@")[2]
    if "@" in rest[len(authority) :]:
        return f"{scheme}://{HIDDEN}"
    host = authority.rpartition("@")[2]
    path = re.split(r"[?#]", rest[len(authority) :], maxsplit=1)[0]
    return f"{scheme}://{host}{path}"
