"""Costs of findings: conversion to hours, prices of a site, and their order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from jobsight.config.settings import PriceSettings
from jobsight.findings.finding import Cost

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
