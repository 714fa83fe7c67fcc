"""Costs of findings: conversion to hours and to the integers of the store, prices of a site, and
their order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from jobsight.config.settings import PriceSettings
from jobsight.findings.finding import Cost
from jobsight.findings.reported import Amount
from jobsight.store.findings.rows import GB_HOUR, HOUR, KWH, StoredCost

_HOUR: Final = 3600.0
_GIGABYTE: Final = 1e9
_KILOWATT: Final = 1e3

#: Core hours of the same value, to compare findings: about what centres charge for each.
_GPU_HOUR: Final = 16.0
_MEMORY_GB_HOUR: Final = 0.25
_ENERGY_KWH: Final = 10.0


def cost_of(
    core_time: float | None = None,
    gpu_time: float | None = None,
    memory_time: float | None = None,
    energy: float | None = None,
) -> Cost:
    """A cost from quantities in the base of their units."""
    return Cost(
        core_hours=_scaled(core_time, _HOUR),
        gpu_hours=_scaled(gpu_time, _HOUR),
        memory_gb_hours=_scaled(memory_time, _GIGABYTE * _HOUR),
        energy_kwh=_scaled(energy, _KILOWATT * _HOUR),
    )


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else max(0.0, value) / factor


def weight(cost: Cost) -> float:
    """A cost as one number, to list the worst finding first."""
    return (
        (cost.core_hours or 0.0)
        + (cost.gpu_hours or 0.0) * _GPU_HOUR
        + (cost.memory_gb_hours or 0.0) * _MEMORY_GB_HOUR
        + (cost.energy_kwh or 0.0) * _ENERGY_KWH
    )


def amounts(cost: Cost, prices: Mapping[str, PriceSettings]) -> dict[str, float]:
    """A cost in each currency of the price list; a currency of which nothing is known is left
    out."""
    found: dict[str, float] = {}
    for currency, price in prices.items():
        parts = [
            (cost.core_hours, price.core_hour),
            (cost.gpu_hours, price.gpu_hour),
            (cost.memory_gb_hours, price.memory_gb_hour),
            (cost.energy_kwh, price.energy_kwh),
        ]
        known = [quantity * each for quantity, each in parts if quantity is not None and each]
        if known:
            found[currency] = sum(known)
    return found


def price(cost: Cost, prices: Mapping[str, PriceSettings]) -> list[Amount]:
    """A cost in the units of the price list, as reports have it."""
    return [Amount(amount, unit) for unit, amount in amounts(cost, prices).items()]


#: A cost in one row; the sums of many fit into 63 bits or are refused.
_HIGHEST: Final = 2**62


def to_stored(cost: Cost) -> StoredCost:
    """As integers, whose sums are exact."""
    return StoredCost(
        core_time=_whole(cost.core_hours, HOUR),
        gpu_time=_whole(cost.gpu_hours, HOUR),
        memory_time=_whole(cost.memory_gb_hours, GB_HOUR),
        energy=_whole(cost.energy_kwh, KWH),
    )


def from_stored(cost: StoredCost) -> Cost:
    """In hours, as everywhere outside."""
    return Cost(
        core_hours=_divided(cost.core_time, HOUR),
        gpu_hours=_divided(cost.gpu_time, HOUR),
        memory_gb_hours=_divided(cost.memory_time, GB_HOUR),
        energy_kwh=_divided(cost.energy, KWH),
    )


def stored_weight(cost: Cost) -> int:
    """The weight of a cost as the store orders lists by it."""
    return _whole(weight(cost), HOUR) or 0


def _whole(value: float | None, factor: float) -> int | None:
    if value is None or value != value:
        return None
    return round(min(max(value * factor, 0.0), _HIGHEST))


def _divided(value: int | None, factor: float) -> float | None:
    return None if value is None else value / factor
