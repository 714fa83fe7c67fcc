import math
from datetime import UTC

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobsight.model import SECOND
from jobsight.util import units


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (None, "-"),
        (0, "0 B"),
        (12, "12 B"),
        (999, "999 B"),
        (1000, "0.98 KiB"),
        (1536, "1.50 KiB"),
        (10 * 2**20, "10.0 MiB"),
        (300 * 2**20, "300 MiB"),
        (2**30, "1.00 GiB"),
        (5 * 2**40, "5.00 TiB"),
    ],
)
def test_bytes(size: int | None, text: str) -> None:
    assert units.format_bytes(size) == text


@pytest.mark.parametrize(
    ("joules", "text"),
    [
        (0, "0 Wh"), (0.001, "0.00028 mWh"), (1, "0.28 mWh"), (480, "133 mWh"),
        (3598, "999 mWh"), (3599, "1.00 Wh"), (36_000, "10.0 Wh"), (5e6, "1.39 kWh"),
        (3.6e9, "1.00 MWh"), (4e13, "11.1 GWh"), (None, "-"), (float("nan"), "-"),
    ],
)  # fmt: skip
def test_energy(joules: float | None, text: str) -> None:
    assert units.format_energy(joules) == text


@pytest.mark.parametrize(
    ("duration", "text"),
    [
        (None, "-"),
        (0, "0 s"),
        (5, "5 ns"),
        (1_500, "1.50 us"),
        (45_000_000, "45.0 ms"),
        (999_600_000, "1.00 s"),
        (12_300_000_000, "12.3 s"),
        (59_960_000_000, "00:01:00"),
        (754 * SECOND, "00:12:34"),
        (93_784 * SECOND, "1 d 02:03:04"),
        (-2 * SECOND, "-2.00 s"),
    ],
)
def test_durations(duration: int | None, text: str) -> None:
    assert units.format_duration(duration) == text


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (None, "-"),
        (0, "0 %"),
        (0.00001, "< 0.01 %"),
        (0.0004, "0.04 %"),
        (0.5, "50 %"),
        (0.973, "97.3 %"),
        (0.99999, "99.99 %"),
        (1, "100 %"),
        (12.0, "1200 %"),
    ],
)
def test_shares(share: float | None, text: str) -> None:
    assert units.format_share(share) == text


def test_counts_cores_rates_times() -> None:
    assert units.format_count(12345) == "12,345"
    assert units.format_count(1.5) == "1.50"
    assert units.format_cores(0.042) == "0.042"
    # Fault 5: no exponents.
    assert units.format_cores(0.0000347) == "< 0.001"
    assert units.format_cores(128.4) == "128"
    assert units.format_byte_rate(2**20) == "1.00 MiB/s"
    assert units.format_time(1_794_717_192 * SECOND, UTC) == "2026-11-15 04:33:12 UTC"
    assert units.format_time(2**62 * SECOND) == "-"


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_unknown(value: float) -> None:
    # Threat S-11: a store may hold such values already.
    formats = (
        units.format_bytes,
        units.format_byte_rate,
        units.format_share,
        units.format_count,
        units.format_cores,
    )
    assert {format(value) for format in formats} == {units.UNKNOWN}


@given(st.integers(-(2**63), 2**63 - 1))
def test_every_figure_is_short(value: int) -> None:
    assert len(units.format_bytes(value)) <= 12
    assert len(units.format_duration(value)) <= 22
    assert units.format_time(value)
