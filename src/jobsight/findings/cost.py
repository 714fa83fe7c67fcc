"""Costs of findings: as integers of the store, in a site's own units, and as one number by which
lists are ordered. ``reported.py`` writes them as text."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from jobsight.config.settings import PriceSettings
from jobsight.findings.finding import Cost
from jobsight.findings.reported import Amount
from jobsight.store.findings.rows import StoredCost

#: Microseconds, MiB seconds and millijoules in an hour, a GB hour and a kWh.
_HOUR: Final = 3_600_000_000
_GB_HOUR: Final = 1e9 / 2**20 * 3600
_KWH: Final = 3_600_000_000
_HIGHEST: Final = 2**62
#: Core hours that weigh as much as one of each: what nodes usually have of them by core.
_GPU_WEIGHT: Final = 16.0
_MEMORY_WEIGHT: Final = 0.25
_ENERGY_WEIGHT: Final = 50.0


def to_stored(cost: Cost) -> StoredCost:
    """As integers, whose sums are exact."""
    return StoredCost(
        core_time=_scaled(cost.core_hours, _HOUR),
        gpu_time=_scaled(cost.gpu_hours, _HOUR),
        memory_time=_scaled(cost.memory_gb_hours, _GB_HOUR),
        energy=_scaled(cost.energy_kwh, _KWH),
    )


def from_stored(cost: StoredCost) -> Cost:
    """In hours, as everywhere outside."""
    return Cost(
        core_hours=_unscaled(cost.core_time, _HOUR),
        gpu_hours=_unscaled(cost.gpu_time, _HOUR),
        memory_gb_hours=_unscaled(cost.memory_time, _GB_HOUR),
        energy_kwh=_unscaled(cost.energy, _KWH),
    )


def _scaled(value: float | None, factor: float) -> int | None:
    if value is None or value != value:
        return None
    return round(min(max(value * factor, 0.0), _HIGHEST))


def _unscaled(value: int | None, factor: float) -> float | None:
    return None if value is None else value / factor


def weigh(cost: Cost) -> int:
    """One number for all costs: microseconds of cores that weigh as much. Energy is that of the
    resources that were held, and counts only where it is more than they are."""
    held = (
        (cost.core_hours or 0.0)
        + (cost.gpu_hours or 0.0) * _GPU_WEIGHT
        + (cost.memory_gb_hours or 0.0) * _MEMORY_WEIGHT
    )
    return _scaled(max(held, (cost.energy_kwh or 0.0) * _ENERGY_WEIGHT), _HOUR) or 0


def price(cost: Cost, prices: Iterable[PriceSettings]) -> list[Amount]:
    """A cost in the units of the price list. A unit without a price for any of it is left out."""
    amounts = []
    for each in prices:
        factors = (each.core_hour, each.gpu_hour, each.memory_gb_hour, each.kwh)
        hours = (cost.core_hours, cost.gpu_hours, cost.memory_gb_hours, cost.energy_kwh)
        known = [
            factor * value
            for factor, value in zip(factors, hours, strict=True)
            if factor and value is not None
        ]
        if known:
            amounts.append(Amount(sum(known), each.unit))
    return amounts
