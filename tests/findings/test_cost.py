"""Costs: exact sums, the order of lists, and a site's own units."""

import pytest

from jobsight.config.settings import PriceSettings
from jobsight.findings.costs import from_stored, price, stored_weight, to_stored
from jobsight.findings.finding import Cost
from jobsight.findings.reported import Amount, format_amount, format_cost
from jobsight.store.findings.rows import StoredCost

FULL = Cost(core_hours=10.0, gpu_hours=2.0, memory_gb_hours=100.0, energy_kwh=3.0)


def test_a_cost_survives_the_store() -> None:
    back = from_stored(to_stored(FULL))
    for name in Cost.__struct_fields__:
        assert getattr(back, name) == pytest.approx(getattr(FULL, name), rel=1e-6)
    assert from_stored(to_stored(Cost())) == Cost()
    assert to_stored(Cost(core_hours=1.0)) == StoredCost(core_time=3_600_000_000)


def test_values_that_no_column_holds() -> None:
    assert to_stored(Cost(core_hours=float("nan"))) == StoredCost()
    assert to_stored(Cost(core_hours=float("inf"))).core_time == 2**62
    assert to_stored(Cost(core_hours=-1.0)).core_time == 0


def test_a_gpu_hour_weighs_more_than_a_core_hour() -> None:
    costs = [
        Cost(),
        Cost(memory_gb_hours=1.0),
        Cost(core_hours=1.0),
        Cost(energy_kwh=1.0),
        Cost(gpu_hours=1.0),
    ]
    weights = [stored_weight(cost) for cost in costs]
    assert weights == sorted(weights)
    assert weights[0] == 0


def test_a_price_list() -> None:
    prices = {
        "EUR": PriceSettings(core_hour=0.01, gpu_hour=1.5),
        "g CO2": PriceSettings(energy_kwh=380.0),
    }
    assert price(FULL, prices) == [Amount(3.1, "EUR"), Amount(1140.0, "g CO2")]
    assert price(Cost(memory_gb_hours=5.0), prices) == []


def test_costs_as_text() -> None:
    assert format_cost(Cost()) == ""
    assert format_cost(Cost(core_hours=0.0)) == ""
    text = format_cost(Cost(core_hours=1240.4, gpu_hours=38.0), [Amount(412.3, "EUR")])
    assert text == "1,240 core h, 38 GPU h (412 EUR)"


@pytest.mark.parametrize(
    ("value", "text"),
    [(1234.5, "1,234"), (38.04, "38"), (12.34, "12.3"), (1.5, "1.5"), (0.25, "0.25"),
     (0.0012, "0.0012"), (-5.0, "-5")],
)  # fmt: skip
def test_amounts(value: float, text: str) -> None:
    assert format_amount(value) == text
