"""Figures in texts have their usual form, and names that users chose stay text."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobsight.findings.texts import (
    MAX_LISTED,
    MAX_NAME,
    MAX_TEMPLATE,
    Template,
    TemplateError,
    show,
    show_slurm,
)
from jobsight.findings.units import Unit, Value
from jobsight.findings.vocabulary import FIGURES

UNITS: dict[str, Unit] = {name: figure.unit for name, figure in FIGURES.items()}


@pytest.mark.parametrize(
    ("value", "unit", "shown"),
    [
        (0.1, "share", "10 %"),
        # A ratio above 1 is shown, not dropped.
        (1.013, "share", "101.3 %"),
        (7200.0, "duration", "02:00:00"),
        (3 * 2.0**30, "size", "3.00 GiB"),
        (12345.0, "count", "12,345"),
        (180_000.0, "core time", "50.0 core hours"),
        (36.0, "core time", "36 core seconds"),
        (0.0523, "core time", "0.052 core seconds"),
        (1800.0, "core time", "0.50 core hours"),
        (0.0, "core time", "0.0 core hours"),
        (2.5e10, "memory time", "25 GB seconds"),
        (12.8, "count", "12.8"),
        (0.114, "count", "0.11"),
        (416_964.26, "rate", "416,964/s"),
        (1.0004, "size", "1 B"),
        (3600.0 * 1234567, "gpu time", "1,234,567 GPU hours"),
        (5e11 * 3600, "memory time", "500 GB hours"),
        (3.6e6, "energy", "1.00 kWh"),
        (12.5, "rate", "12.5/s"),
        (2.0**20, "byte rate", "1.00 MiB/s"),
        (1_763_440_000.0, "time", "2025-11-18 04:26:40 UTC"),
        ("name", "text", "name"),
        (["a", "b"], "texts", "a, b"),
        (["a"] * 13, "texts", ", ".join("a" * 10) + " and 3 more"),
        (True, "flag", "yes"),
        (float("nan"), "share", "-"),
        (float("inf"), "duration", "-"),
        (float("inf"), "time", "-"),
    ],
)
def test_quantities_are_shown_in_their_usual_form(value: Value, unit: Unit, shown: str) -> None:
    assert show(value, unit) == shown


@pytest.mark.parametrize(
    ("value", "unit", "shown"),
    [
        (14 * 2.0**30, "size", "14G"),
        (13.1 * 2.0**30, "size", "14G"),
        (1.5 * 2.0**30, "size", "1536M"),
        (2 * 2.0**30, "size", "2G"),
        (0.0, "size", "0G"),
        (1.0, "size", "1M"),
        (93_784.0, "duration", "1-02:03:04"),
        (3599.2, "duration", "01:00:00"),
        (7.2, "count", "8"),
        (1200.0, "count", "1200"),
    ],
)
def test_quantities_for_slurm_are_rounded_up(value: float, unit: Unit, shown: str) -> None:
    assert show_slurm(value, unit) == shown


def test_a_template_with_formats_and_braces() -> None:
    template = Template("{{{cpu.cores:raw}}} of {memory.used:slurm}, {run.name}", UNITS)
    values: dict[str, Value] = {"cpu.cores": 1234.0, "memory.used": 2.0**34, "run.name": "x"}
    assert template.fill(values) == "{1234} of 16G, x"
    assert template.names == ("cpu.cores", "memory.used", "run.name")
    assert template.is_known(values)
    assert not template.is_known({})
    assert template.fill({}) == "{not known} of not known, not known"


@pytest.mark.parametrize(
    "text", ["{", "}", "{}", "{cpu.share", "cpu.share}", "{ cpu.share }", "{a}"]
)
def test_what_is_no_placeholder_is_refused(text: str) -> None:
    with pytest.raises(TemplateError):
        Template(text, UNITS)


def test_a_long_template_is_refused() -> None:
    with pytest.raises(TemplateError, match="expected at most"):
        Template("a" * (MAX_TEMPLATE + 1), UNITS)


@given(st.text())
def test_names_are_text_in_one_line_and_never_a_template(name: str) -> None:
    template = Template("<{run.name}>", UNITS)
    filled = template.fill({"run.name": name, "run.user": "SECRET"})
    assert filled.isprintable()
    assert len(filled) <= 4 * MAX_NAME + 10
    if name.isprintable() and len(name) <= MAX_NAME:
        assert filled == f"<{name}>"


@pytest.mark.parametrize(
    "name",
    [
        "{run.user}",
        "{{",
        "%(user)s",
        "{0.__class__}",
        "<script>alert(1)</script>",
        "$(reboot)",
        "a\nb",
        "\x1b[31m",
        "\u202e",
        "\udcff",
        "'; drop table findings; --",
    ],
)
def test_hostile_names(name: str) -> None:
    filled = Template("{run.name}", UNITS).fill({"run.name": name, "run.user": "SECRET"})
    assert filled.isprintable()
    assert "SECRET" not in filled
    # A line to change is there to be copied into a shell.
    line = Template("srun {run.name}", UNITS, quoted=True).fill({"run.name": name})
    assert len(shlex.split(line)) == 2


def test_lists_for_slurm_are_bounded() -> None:
    template = Template("--array={array.split_rest:slurm}", UNITS, quoted=True)
    assert template.fill({"array.split_rest": ["3", "7"]}) == "--array=3,7"
    many = template.fill({"array.split_rest": [str(n) for n in range(MAX_LISTED + 1)]})
    assert many.endswith(f"{MAX_LISTED - 1},...")
