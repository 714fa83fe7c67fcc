"""A job that is only a name: outputs read who it is and nothing else."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from jobsight.agent.job import JobView
from jobsight.cli.compat.collector import view_of
from jobsight.model import parse_start

HOSTILE = [
    "100%",
    "%(jobid)s %s %%",
    'say "hello"',
    "{brace}",
    "two\nlines",
    "tab\tnul\x00",
    "back\\slash",
    b"\xff\xfe.x".decode("utf-8", "surrogateescape"),
    "\N{RIGHT-TO-LEFT OVERRIDE}",
    "a b/../../c",
    "x" * 4096,
]


@pytest.fixture
def view() -> JobView:
    view = view_of(1234, "n1")
    view.sighting = msgspec.structs.replace(view.sighting, birth=parse_start("20261115T043312Z"))
    return view


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """The path of a unix socket has 107 bytes, which a worker's directory can use up by itself."""
    with tempfile.TemporaryDirectory(prefix="sight") as name:
        yield Path(name)
