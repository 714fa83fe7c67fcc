"""Quantities are read with their unit, and anything else is refused with what is expected."""

from __future__ import annotations

import contextlib
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobsight.findings.units import SUFFIXES, parse_quantity


@pytest.mark.parametrize(
    ("text", "value", "unit"),
    [
        ("65 %", 0.65, "share"),
        ("65%", 0.65, "share"),
        ("2 h", 7200.0, "duration"),
        (" 4  GiB ", 4 * 2.0**30, "size"),
        ("50 core h", 180_000.0, "core time"),
        ("1.5 GPU h", 5400.0, "gpu time"),
        ("100 GB h", 1e11 * 3600, "memory time"),
        ("10 /s", 10.0, "rate"),
        ("3", 3.0, "count"),
        ("-2 min", -120.0, "duration"),
    ],
)
def test_quantities(text: str, value: float, unit: str) -> None:
    quantity = parse_quantity(text)
    assert quantity.unit == unit
    assert math.isclose(quantity.value, value)


@pytest.mark.parametrize(
    "text", ["", "%", "65 percent", "2 H", "1e5", "nan", "inf", "5 5", "0x10 s", "٣ h", "1 GB H"]
)
def test_what_is_no_quantity_says_what_is_expected(text: str) -> None:
    with pytest.raises(ValueError, match="is not a quantity; expected a number and one of %"):
        parse_quantity(text)


@given(st.text(max_size=40))
def test_any_text_is_a_finite_quantity_or_an_error(text: str) -> None:
    with contextlib.suppress(ValueError):
        assert math.isfinite(parse_quantity(text).value)


@given(
    st.sampled_from(sorted(SUFFIXES)),
    st.decimals(-(10**12), 10**12, places=6, allow_nan=False),
    st.sampled_from(["", " ", "  "]),
)
def test_every_suffix_has_its_unit_and_factor(suffix: str, number: object, space: str) -> None:
    unit, factor = SUFFIXES[suffix]
    quantity = parse_quantity(f"{number:f}{space}{suffix}")  # type: ignore[str-format]
    assert quantity.unit == unit
    assert math.isclose(quantity.value, float(str(number)) * factor, abs_tol=1e-300)
