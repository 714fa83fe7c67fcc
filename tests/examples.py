"""How many examples Hypothesis tries: few in `make test-fast`, many in `make test-long`."""

from __future__ import annotations

import os

import hypothesis

#: HYPOTHESIS_PROFILE and the share of the examples that a test names.
SHARES = {"fast": 0.1, "repeatable": 0.5, "long": 2.0}
PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "repeatable")


def examples(number: int) -> int:
    """For ``@settings(max_examples=...)``: the number for the profile of this run."""
    return max(5, round(number * SHARES[PROFILE]))


def load_profile() -> None:
    # The time that an example takes depends on the load of the machine, so there is no deadline.
    # One commit has one result: the examples are the same in every run. Only `make test-long` of a
    # developer tries others each time.
    hypothesis.settings.register_profile(
        PROFILE,
        deadline=None,
        derandomize=PROFILE != "long" or "CI" in os.environ,
        max_examples=examples(100),
        suppress_health_check=[hypothesis.HealthCheck.too_slow],
    )
    hypothesis.settings.load_profile(PROFILE)
