"""A fixed small share of `make fuzz`: every target, some hundred mutations, always the same."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator

import pytest

from tests.examples import PROFILE
from tests.fuzz.mutations import mutations
from tests.fuzz.targets import CORPUS, FACTORIES, remove_files, samples

#: Mutations of each target.
CASES = 5000 if PROFILE == "long" else 150


@pytest.fixture(scope="module", autouse=True)
def files() -> Iterator[None]:
    yield
    remove_files()


@pytest.mark.parametrize("name", FACTORIES)
def test_a_parser_raises_only_what_its_callers_handle(name: str) -> None:
    target = FACTORIES[name]()
    assert target.name == name
    corpus = samples(name)
    assert corpus, f"tests/data/fuzz/{name} has no sample"
    for data in mutations(name, corpus, CASES, target.largest):
        with contextlib.suppress(*target.allowed), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                target.parse(data)
            except target.allowed:
                raise
            except BaseException as error:
                pytest.fail(f"{name}: {type(error).__name__}: {error!s:.200} for {data[:400]!r}")


def test_every_corpus_has_its_target() -> None:
    assert {place.name for place in CORPUS.iterdir()} - {"plugin"} == FACTORIES.keys()
