from __future__ import annotations

from typing import Annotated

import msgspec
import pytest

from jobsight.config.validate import convert
from jobsight.errors import ConfigError


class Inner(msgspec.Struct, kw_only=True):
    port: Annotated[int, msgspec.Meta(ge=0)] = 1

    def __post_init__(self) -> None:
        if self.port == 13:
            raise ConfigError("port: 13 is refused; expected another")


class Outer(msgspec.Struct, kw_only=True):
    name: str
    size: float = 1.0
    inner: Inner = msgspec.field(default_factory=Inner)
    tables: dict[str, Inner] = msgspec.field(default_factory=dict)


def test_a_tree_becomes_structs() -> None:
    tree = {"name": "a", "inner": {"port": 2}, "tables": {"x": {"port": 3}}}
    outer = convert(tree, Outer, origin="f")
    assert outer == Outer(name="a", inner=Inner(port=2), tables={"x": Inner(port=3)})


@pytest.mark.parametrize(
    ("tree", "sentence"),
    [
        ({}, "f: name: is missing"),
        ({"name": 1}, "f: name: expected `str`, got `int`"),
        ({"name": "a", "size": "2"}, "f: size: expected `float`, got `str`"),
        ({"name": "a", "nam": 1}, r"f: unknown key nam; did you mean name\?"),
        (
            {"name": "a", "inner": {"porto": 1}},
            r"f: unknown key inner.porto; did you mean inner.port",
        ),
        ({"name": "a", "inner": 1}, "f: inner: expected a table of settings, got `int`"),
        ({"name": "a", "tables": {"x": {"port": -1}}}, "f: tables.x.port: expected `int` >= 0"),
        ({"name": "a", "tables": {"x": {"port": 13}}}, "f: tables.x.port: 13 is refused"),
    ],
)
def test_an_error_names_the_file_and_the_key(tree: object, sentence: str) -> None:
    with pytest.raises(ConfigError, match=f"^{sentence}"):
        convert(tree, Outer, origin="f")


def test_foreign_files_are_read_leniently() -> None:
    warnings: list[str] = []
    tree = {"name": "a", "size": "2", "nam": 1, "loglevel": "x", "inner": {"port": None}}
    outer = convert(
        tree,
        Outer,
        origin="f",
        path=("sams.x",),
        unknown="warn",
        warn=warnings.append,
        ignored=("loglevel",),
    )
    assert outer == Outer(name="a", size=2.0)
    assert warnings == ["f: unknown key sams.x.nam; did you mean sams.x.name?"]


def test_a_number_for_text_gets_a_hint() -> None:
    with pytest.raises(ConfigError, match="expected the value in quotes, '5'"):
        convert({"name": 5}, Outer, origin="f", unknown="warn")
