"""The stored form of figures."""

from __future__ import annotations

import msgspec
import pytest
import zstandard

from jobsight.errors import StoreError
from jobsight.findings.packed import decode_figures, encode_figures
from jobsight.findings.vocabulary import MAX_TEXT, FigureSet


def some() -> FigureSet:
    figures = FigureSet()
    figures.set("cpu.share", 0.25)
    figures.set("cpu.cores", 4)
    figures.set("run.running", False)
    figures.set("run.name", "<b>\u202e%s")
    figures.set("idle.holders", ["/usr/bin/sleep"])
    figures.set("time.left", None, "the run has ended")
    figures.unknown["gpu"] = "the job has no GPU"
    figures.coverage["cpu"] = 0.5
    return figures


def test_figures_are_read_as_they_were() -> None:
    figures = some()
    again = decode_figures(encode_figures(figures))
    assert again.values == figures.values
    assert again.unknown == figures.unknown
    assert again.coverage == figures.coverage
    assert isinstance(again.values["cpu.cores"], float)
    assert encode_figures(again) == encode_figures(figures)


def test_figures_of_another_release_are_left_out() -> None:
    form = [
        1,
        {"cpu.share": 0.25, "cpu.later": 3, "run.name": 7, "run.running": 1, "cpu.cores": True},
        {"of later": ["cpu.later", "time.left", "quantum"]},
        {"cpu": 1.0, "quantum": 0.5},
        "a field of a later release",
    ]
    figures = decode_figures(zstandard.compress(msgspec.msgpack.encode(form)))
    assert figures.values == {"cpu.share": 0.25}
    assert figures.unknown == {"time.left": "of later"}
    assert figures.coverage == {"cpu": 1.0}


@pytest.mark.parametrize(
    "data", [b"", b"nothing", zstandard.compress(b"\xc1"), zstandard.compress(b"\x01")]
)
def test_damaged_figures_are_refused(data: bytes) -> None:
    with pytest.raises(StoreError, match="the stored figures of a run cannot be read"):
        decode_figures(data)


def test_values_are_finite_and_bounded() -> None:
    figures = FigureSet()
    figures.set("cpu.share", float("nan"))
    figures.set("cpu.cores", float("inf"))
    figures.set("run.name", "x" * 20_000)
    assert figures.values == {"run.name": "x" * MAX_TEXT}
    assert figures.reason("cpu.share") == "its value is not finite"
