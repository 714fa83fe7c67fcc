"""Formatting of bytes, durations, shares, counts and times for display."""

from __future__ import annotations

import math
from datetime import UTC, datetime, tzinfo
from typing import TypeGuard, TypeVar

#: Nanoseconds.
SECOND = 1_000_000_000

#: A value that is unknown or not finite; never shown as 0.
UNKNOWN = "-"
_Number = TypeVar("_Number", int, float)

_MINUTE = 60
_HOUR = 60 * _MINUTE
_DAY = 24 * _HOUR

#: In joules.
_WATT_HOUR = 3600
_WATT_HOURS = ("mWh", "Wh", "kWh", "MWh", "GWh")

_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


def is_known(value: _Number | None) -> TypeGuard[_Number]:
    """Whether there is a number to show: neither None nor NaN nor infinity."""
    return value is not None and math.isfinite(value)


def format_bytes(size: float | None) -> str:
    """Format a size in binary units with three significant digits: 1.46 GiB, 300 MiB, 12 B."""
    if not is_known(size):
        return UNKNOWN
    value, unit = float(size), 0
    # 1023.5 KiB would be formatted as "1024 KiB"; with three digits it is 1.00 MiB.
    while abs(value) >= 999.5 and unit < len(_BINARY) - 1:
        value /= 1024
        unit += 1
    return f"{_three_digits(value, integer=unit == 0)} {_BINARY[unit]}"


def format_energy(joules: float | None) -> str:
    """Format an energy in watt hours, which a power and a time give directly: 133 mWh, 10.0 Wh,
    1.39 kWh."""
    if not is_known(joules):
        return UNKNOWN
    if joules == 0:
        return "0 Wh"
    value, unit = joules / _WATT_HOUR * 1000, 0
    while abs(value) >= 999.5 and unit < len(_WATT_HOURS) - 1:
        value /= 1000
        unit += 1
    return f"{_three_digits(value, small=unit == 0)} {_WATT_HOURS[unit]}"


def format_power(watts: float | None) -> str:
    """Format a power with three significant digits: 312 W, 1.25 kW."""
    if not is_known(watts):
        return UNKNOWN
    if abs(watts) >= 999.5:
        return f"{_three_digits(watts / 1000)} kW"
    return f"{_three_digits(watts)} W"


def format_byte_rate(rate: float | None) -> str:
    """Format bytes per second: 12.0 MiB/s."""
    return f"{format_bytes(rate)}/s" if is_known(rate) else UNKNOWN


def format_duration(duration: int | None) -> str:
    """Format nanoseconds: 45 ms, 12.3 s, 00:12:34, 1 d 02:03:04."""
    if duration is None:
        return UNKNOWN
    if duration < 0:
        return f"-{format_duration(-duration)}"
    if duration == 0:
        return "0 s"
    if duration < 1_000:
        return f"{duration} ns"
    if duration < 999_500:
        return f"{_three_digits(duration / 1e3)} us"
    if duration < 999_500_000:
        return f"{_three_digits(duration / 1e6)} ms"
    if duration < 9_995_000_000:
        return f"{duration / SECOND:.2f} s"
    if duration < 59_950_000_000:
        return f"{duration / SECOND:.1f} s"
    seconds = (duration + SECOND // 2) // SECOND
    days, rest = divmod(seconds, _DAY)
    clock = f"{rest // _HOUR:02d}:{rest % _HOUR // _MINUTE:02d}:{rest % _MINUTE:02d}"
    return f"{days} d {clock}" if days else clock


def format_share(share: float | None) -> str:
    """Format a share of 1 in per cent: 97.3 %, 0.04 %, 100 %."""
    if not is_known(share):
        return UNKNOWN
    percent = share * 100
    if 0 < percent < 0.01:
        return "< 0.01 %"
    # 99.96 % must not be rounded to 100 %.
    if 99.95 <= percent < 100:
        return f"{int(percent * 100) / 100:.2f} %"
    if 0 < percent < 0.095:
        return f"{percent:.2f} %"
    if percent == round(percent) or percent >= 999.5:
        return f"{percent:.0f} %"
    return f"{percent:.1f} %"


def format_count(count: float | None) -> str:
    """Format a count with separated thousands: 12,345."""
    if not is_known(count):
        return UNKNOWN
    return f"{count:,.0f}" if float(count).is_integer() else f"{count:,.2f}"


def format_cores(cores: float | None) -> str:
    """Format a mean number of busy CPUs: 3.2, 0.04, < 0.001, 128."""
    if not is_known(cores):
        return UNKNOWN
    if 0 < cores < 0.001:
        return "< 0.001"
    return "0" if cores == 0 else _three_digits(cores, small=True)


def format_hours(value: float | None) -> str:
    """Format hours to three digits or whole: < 0.001, 0.012, 1.23, 12.3, 1,234."""
    if not is_known(value):
        return UNKNOWN
    if 0 < abs(value) < 0.001:
        return "< 0.001" if value > 0 else "> -0.001"
    if value == 0 or abs(value) >= 99.95:
        return format_count(round(value))
    return f"{value:.1f}" if abs(value) >= 9.995 else f"{value:.3g}"


def format_time(time: int | None, zone: tzinfo | None = UTC) -> str:
    """Format a time to the second with its zone: 2026-11-15 04:33:12 UTC; no zone means local."""
    if time is None:
        return UNKNOWN
    try:
        date = datetime.fromtimestamp(time // SECOND, zone or UTC)
        local = date if zone else date.astimezone()
    except (ValueError, OverflowError, OSError):
        return UNKNOWN
    return local.strftime("%Y-%m-%d %H:%M:%S %Z")


def _three_digits(value: float, *, integer: bool = False, small: bool = False) -> str:
    if integer and value.is_integer():
        return f"{value:.0f}"
    size = abs(value)
    if size >= 99.95:
        return f"{value:.0f}"
    if size >= 9.995:
        return f"{value:.1f}"
    if small and size < 0.995:
        return f"{value:.2g}"
    return f"{value:.2f}"
