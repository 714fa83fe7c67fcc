"""Acting as an ordinary user, also where root runs the tests."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

NOBODY = 65534


@contextmanager
def as_a_user() -> Iterator[None]:
    """Give up the rights of root for a while: root may enter every directory."""
    root = os.geteuid() == 0
    if root:
        os.setresuid(NOBODY, NOBODY, 0)
    try:
        yield
    finally:
        if root:
            os.setresuid(0, 0, 0)
