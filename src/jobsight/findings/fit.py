"""What would have fitted: the request of least expected waste, from past runs of the same work.

:func:`fit_request` is a pure function of a sequence of past runs. It is used for memory and time,
whose limit kills a run, in any unit. The next need is predicted by the smoothed mean, or by the
maximum of the last 3 or 200 runs, times a margin. How far each of the three was exceeded in the
past (the residuals) gives the margin for a probability of failure. Of all pairs of predictor and
margin, the one is taken that would have wasted least: resources allotted and not needed, and those
of a failed run and of its repetition with the old request (Tovar et al., 2018). Recent runs have
more weight.

The probability of failure is bounded: 5 % at most, and less while the advice of the past has failed
more often than in one of 20 runs; then a request has room for a step larger than the largest one.
The first five runs, whose residuals say little, get more room also. A run that was killed at
its limit needed at least the limit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Final, NamedTuple

#: Runs after which a run has half of its weight.
HALF_LIFE: Final = 20
#: Runs whose residuals are used: the older ones have less than an eighth of the weight.
_RESIDUALS: Final = 60
#: The predictors: the maximum of so many last runs; 0 is their smoothed mean.
_REACHES: Final = (0, 3, 200)
#: Weight of the last run in the smoothed mean.
_SMOOTHING: Final = 0.15
#: Runs that are read.
MAX_RUNS: Final = 200
#: Probabilities of failure that are compared.
_PROBABILITIES: Final = (0.002, 0.005, 0.01, 0.02, 0.03, 0.05)
#: The highest of them: in general, while too few runs followed the advice to afford a failure, and
#: after one failure too many.
_USUAL: Final = 0.05
_CAREFUL: Final = 0.03
_VERY_CAREFUL: Final = 0.002
#: One failure in so many runs is accepted.
TOLERATED: Final = 20
#: Mean excess of a new maximum, as a logarithm, before anything is known of the work; and its
#: weight in runs.
_PRIOR_EXCESS: Final = 0.07
_PRIOR_WEIGHT: Final = 0.5
#: The least request after one failure too many, as a multiple of the largest need; and the power of
#: the largest step to a new maximum, which is another such multiple.
_CAREFUL_FACTOR: Final = 2.0
_CAREFUL_POWER: Final = 1.5
#: The least request after the first runs, as a multiple of the largest need: of two runs the second
#: needs more in half of all works, and so few residuals do not say how much more.
_FIRST_FACTORS: Final = (2.5, 1.8, 1.5, 1.35, 1.25)
#: A request of so many times the largest need leaves room.
_ROOM: Final = 1.1
#: Share of the residuals whose mean excess describes the tail.
_TAIL_SHARE: Final = 0.15
#: A run that was killed at its limit, and was never repeated with success, is taken to need so much
#: of the limit.
_CENSORED_FACTOR: Final = 1.25
#: The request of a run that has none recorded, as a multiple of its need.
_UNKNOWN_REQUEST: Final = 3.0
#: Below so many runs the advice is marked as based on few runs.
FEW_RUNS: Final = 3

_DECAY: Final = 0.5 ** (1 / HALF_LIFE)
#: Weight by age in runs.
_WEIGHTS: Final = tuple(_DECAY**age for age in range(MAX_RUNS))
#: Needs and weights out of these bounds are errors of measurement; products of those within are
#: finite.
_SMALLEST: Final = 1e-12
_LARGEST: Final = 1e30
#: The logarithm of the largest margin.
_MAX_MARGIN: Final = 100.0


class PastRun(NamedTuple):
    """One run of the same work, in the order of submission. Units are the caller's."""

    #: Peak of memory, or elapsed time; the limit if the run was killed there.
    need: float
    #: How long the run held the request, or what else the waste is multiplied by.
    weight: float = 1.0
    request: float | None = None
    #: The run was killed at its limit: it needed at least ``need``.
    censored: bool = False
    #: The request that was recommended before the run.
    advised: float | None = None


class Fit(NamedTuple):
    """A recommended request, and what it would have done to the runs of the past."""

    request: float
    #: Runs that it is based on, and those of them that would have passed.
    runs: int
    passed: int
    #: The largest need of these runs.
    largest: float
    #: Request minus need of the past runs, times their weight; the same with the recommendation.
    #: Runs without a recorded request and those that would have failed are left out of both.
    unused: float
    unused_with: float
    #: Based on fewer than three runs.
    few: bool

    @property
    def saving(self) -> float:
        return self.unused - self.unused_with


def fit_request(
    runs: Sequence[PastRun],
    *,
    request: float | None = None,
    slack: float = 0.0,
    rounded: Callable[[float], float] = float,
) -> Fit | None:
    """The request of least expected waste for the next run; None without a usable past run.

    ``request`` is the present request, with which a failed run is repeated; by default that of the
    last run. ``slack`` is added to every recommendation, and ``rounded`` rounds it up to what the
    scheduler accepts. The result is never below the largest need of the last three runs.
    """
    usable = [_with_valid_request(run) for run in runs[-MAX_RUNS:] if _is_usable(run)]
    if not usable:
        return None
    needs = _uncensored(usable)
    if request is None or not _SMALLEST < request < _LARGEST:
        request = usable[-1].request
    allowed = _allowed_probability(usable)
    best = _least_waste(needs, usable, request, allowed)
    if len(needs) <= len(_FIRST_FACTORS):
        best = max(best, _FIRST_FACTORS[len(needs) - 1] * max(needs))
    if allowed == _VERY_CAREFUL:
        best = max(best, _careful_request(needs, request))
    recommended = rounded(max(best, *needs[-3:]) + slack)
    if request is not None and _ROOM * max(needs) <= request < recommended:
        # Every run had room: few runs, or a few large needs, say nothing against the request.
        recommended = request
    past = list(zip(needs, usable, strict=True))
    compared = [
        (run.request, need, run.weight)
        for need, run in past
        if run.request is not None and need <= min(recommended, run.request)
    ]
    return Fit(
        request=recommended,
        runs=len(needs),
        passed=sum(need <= recommended for need in needs),
        largest=max(needs),
        unused=sum((held - need) * weight for held, need, weight in compared),
        unused_with=sum((recommended - need) * weight for _, need, weight in compared),
        few=len(needs) < FEW_RUNS,
    )


def _is_usable(run: PastRun) -> bool:
    return _SMALLEST < run.need < _LARGEST and 0 <= run.weight < _LARGEST


def _with_valid_request(run: PastRun) -> PastRun:
    is_valid = run.request is None or _SMALLEST < run.request < _LARGEST
    return run if is_valid else run._replace(request=None)


def _uncensored(runs: Sequence[PastRun]) -> list[float]:
    """The needs; that of a run killed at its limit is the next higher one that succeeded later."""
    needs: list[float] = []
    later = math.nan
    for run in reversed(runs):
        if not run.censored:
            later = run.need
            needs.append(run.need)
        else:
            needs.append(later if later > run.need else run.need * _CENSORED_FACTOR)
    needs.reverse()
    return needs


def _allowed_probability(runs: Sequence[PastRun]) -> float:
    """The highest probability of failure: another failure must not exceed one in 20 runs."""
    followed = [run for run in runs if run.advised is not None]
    failures = sum(run.need > run.advised for run in followed if run.advised is not None)
    if (failures + 1) * TOLERATED <= len(followed) + 1:
        return _USUAL
    return _VERY_CAREFUL if failures else _CAREFUL


def _careful_request(needs: Sequence[float], request: float | None) -> float:
    """The least request after one failure too many: a step larger than the largest one would
    pass. It is not above the present request, which held the runs."""
    step, highest = 1.0, needs[0]
    for need in needs:
        if need > highest:
            step, highest = max(step, need / highest), need
    least: float = max(_CAREFUL_FACTOR, step**_CAREFUL_POWER) * highest
    return min(least, request if request is not None else _UNKNOWN_REQUEST * highest)


def _least_waste(
    needs: Sequence[float], runs: Sequence[PastRun], request: float | None, allowed: float
) -> float:
    count = min(len(needs) - 1, _RESIDUALS)
    if count == 0:
        return needs[-1] * math.exp(_PRIOR_EXCESS * math.log(0.5 / allowed))
    recent = needs[-count:]
    # Newest last, as the runs are.
    weights = _WEIGHTS[count - 1 :: -1]
    total = sum(weights)
    effective = total * total / sum(weight * weight for weight in weights)
    held = [weight * run.weight for weight, run in zip(weights, runs[-count:], strict=True)]
    repeated = [
        time * (request or run.request or _UNKNOWN_REQUEST * need)
        for time, run, need in zip(held, runs[-count:], recent, strict=True)
    ]
    needed = sum(time * need for time, need in zip(held, recent, strict=True))
    all_repeated = sum(repeated)
    first = len(needs) - count
    second, highest = sorted(needs)[-2:]
    smoothed = list(accumulate(needs, lambda mean, need: mean + _SMOOTHING * (need - mean)))
    best, least = needs[-1], math.inf
    for reach in _REACHES:
        if reach == 0:
            bases, base = smoothed[first - 1 : -1], smoothed[-1]
        elif reach >= MAX_RUNS:
            # The maximum of all other runs, also later ones: that of the first few was exceeded
            # more often than that of many is.
            bases = [second if need == highest else highest for need in recent]
            base = highest
        else:
            bases = [max(needs[max(i - reach, 0) : i]) for i in range(first, len(needs))]
            base = max(needs[-reach:])
        residuals = [need / before for need, before in zip(recent, bases, strict=True)]
        order = sorted(range(count), key=residuals.__getitem__, reverse=True)
        top, excess = _tail([math.log(residuals[i]) for i in order], steady=reach < MAX_RUNS)
        allotted = sum(time * before for time, before in zip(held, bases, strict=True))
        for probability in _PROBABILITIES:
            if probability > allowed:
                break
            margin, failing = _margin(
                probability * (effective + 1), effective / total, order, weights
            )
            factor = (
                math.exp(min(top + excess * margin, _MAX_MARGIN))
                if failing == 0
                else residuals[order[failing]]
            )
            # A failed run costs what it held and the unused part of its repetition: what it would
            # have cost had it passed, and the request.
            waste = factor * allotted - needed + sum(repeated[i] for i in order[:failing])
            unseen = math.exp(-margin) if failing == 0 else 1.0
            waste += unseen / (effective + 1) * (factor * allotted + all_repeated - needed)
            if waste < least:
                best, least = base * factor, waste
    return best


def _tail(logarithms: Sequence[float], steady: bool) -> tuple[float, float]:
    """The highest residual, and the mean excess of a still higher one. Highest residual first.

    Unless the predictor is ``steady``, which the maximum of all runs is not, low residuals say
    nothing about high ones.
    """
    count = len(logarithms)
    median = logarithms[count // 2]
    spread = sum(abs(value - median) for value in logarithms)
    size = max(1, math.ceil(count * _TAIL_SHARE))
    threshold = logarithms[min(size, count - 1)]
    above = sum(value - threshold for value in logarithms[:size])
    if not steady:
        return logarithms[0], (_PRIOR_EXCESS + above) / (1 + size)
    excess = above / (1 + size)
    usual = (_PRIOR_EXCESS * _PRIOR_WEIGHT + spread) / (_PRIOR_WEIGHT + count)
    return logarithms[0], max(usual, excess)


def _margin(
    budget: float, unit: float, order: Sequence[int], weights: Sequence[float]
) -> tuple[float, int]:
    """The margin whose probability of failure is the budget, in runs.

    Of one more run than there are, the additional one is higher than all with an exponential
    excess. Returns how many mean excesses the margin is above the highest residual, and how many of
    the residuals exceed it.
    """
    if budget < 1:
        return -math.log(budget), 0
    sum_of_weights = 1.0
    for failing, index in enumerate(order):
        sum_of_weights += weights[index] * unit
        if sum_of_weights > budget:
            return 0.0, failing
    return 0.0, len(order) - 1


def fit_count(needs: Sequence[float], tolerance: float = 0.05) -> int | None:
    """Cores or GPUs that suffice: what a run with fewer lacks is speed, and it is not killed.

    The weighted 95 % quantile, at least the largest of the last three, rounded to the nearest
    whole number above a tenth.
    """
    usable = [need for need in needs[-MAX_RUNS:] if 0 <= need < _LARGEST]
    if not usable:
        return None
    weights = _WEIGHTS[len(usable) - 1 :: -1]
    allowed = tolerance * sum(weights)
    wanted = 0.0
    for need, weight in sorted(zip(usable, weights, strict=True), reverse=True):
        allowed -= weight
        if allowed < 0:
            wanted = need
            break
    # 8.04 busy cores are eight and some work of the kernel.
    return max(1, math.ceil(max(wanted, *usable[-3:]) - 0.1))


class Growth(NamedTuple):
    """A need that grows with a value that is known before the run: the array index."""

    intercept: float
    slope: float
    #: The largest need of a past run divided by the line.
    margin: float
    correlation: float

    def at(self, value: float) -> float:
        return (self.intercept + self.slope * value) * self.margin


#: Runs and rank correlation from which a need is taken to grow with a value.
_GROWTH_RUNS: Final = 10
_GROWTH_CORRELATION: Final = 0.7


def find_growth(values: Sequence[float], needs: Sequence[float]) -> Growth | None:
    """How needs grow with values, if at all: often they do not, so that it is tested first.

    None unless the rank correlation is above 0.7, the line explains more than half of the variance
    and is positive for all values.
    """
    count = len(values)
    if count < _GROWTH_RUNS or len(set(values)) < _GROWTH_RUNS // 2:
        return None
    correlation = _correlation(_ranks(values), _ranks(needs))
    if correlation <= _GROWTH_CORRELATION:
        return None
    linear = _correlation(values, needs)
    if linear * linear <= 0.5:
        return None
    mean_value, mean_need = math.fsum(values) / count, math.fsum(needs) / count
    variance = math.fsum((value - mean_value) ** 2 for value in values)
    products = ((v - mean_value) * (n - mean_need) for v, n in zip(values, needs, strict=True))
    slope = math.fsum(products) / variance
    intercept = mean_need - slope * mean_value
    lines = [intercept + slope * value for value in values]
    if min(lines) <= 0:
        return None
    margin = max(need / line for need, line in zip(needs, lines, strict=True))
    return Growth(intercept, slope, margin, correlation)


def _ranks(values: Sequence[float]) -> list[float]:
    """Ranks; equal values have their mean rank."""
    order = sorted(range(len(values)), key=values.__getitem__)
    ranks = [0.0] * len(values)
    first = 0
    while first < len(order):
        last = first
        while last + 1 < len(order) and values[order[last + 1]] == values[order[first]]:
            last += 1
        for index in order[first : last + 1]:
            ranks[index] = (first + last) / 2
        first = last + 1
    return ranks


def _correlation(first: Sequence[float], second: Sequence[float]) -> float:
    count = len(first)
    means = math.fsum(first) / count, math.fsum(second) / count
    product = math.fsum((a - means[0]) * (b - means[1]) for a, b in zip(first, second, strict=True))
    squares = [
        math.fsum((value - mean) ** 2 for value in values)
        for values, mean in ((first, means[0]), (second, means[1]))
    ]
    scale = math.sqrt(squares[0]) * math.sqrt(squares[1])
    return product / scale if scale > 0 and math.isfinite(scale) else 0.0


class Split(NamedTuple):
    """An array in two: the request that most tasks need, and that of the others."""

    request: float
    #: How many tasks, in the order of need, fit into the first request.
    tasks: int
    rest_request: float
    #: Indices of the other tasks in the given sequence, the largest need first.
    rest: tuple[int, ...]
    #: Allotted with one request, and saved by two.
    allotted: float
    saved: float

    @property
    def saving(self) -> float:
        return self.saved / self.allotted if self.allotted > 0 else 0.0


def split_array(
    needs: Sequence[float],
    times: Sequence[float],
    rounded: Callable[[float], float] = float,
) -> Split | None:
    """The split into two requests that allots least while all tasks pass; exact.

    Tasks are sorted by need: any better pair of requests would be one of these cuts. None for
    fewer than two tasks, and where two requests save nothing.
    """
    order = sorted(range(len(needs)), key=needs.__getitem__)
    if len(order) < 2 or not all(
        0 < need < _LARGEST and 0 <= time < _LARGEST
        for need, time in zip(needs, times, strict=True)
    ):
        return None
    before = list(accumulate(times[index] for index in order))
    total, highest = before[-1], rounded(needs[order[-1]])
    allotted = highest * total
    best: tuple[float, int] | None = None
    for cut in range(1, len(order)):
        cost = rounded(needs[order[cut - 1]]) * before[cut - 1] + highest * (
            total - before[cut - 1]
        )
        if best is None or cost < best[0]:
            best = (cost, cut)
    assert best is not None
    cost, cut = best
    if cost >= allotted:
        return None
    return Split(
        request=rounded(needs[order[cut - 1]]),
        tasks=cut,
        rest_request=highest,
        rest=tuple(reversed(order[cut:])),
        allotted=allotted,
        saved=allotted - cost,
    )


# --- what Slurm accepts ---------------------------------------------------------------------------

_MIB: Final = 2.0**20
_GIB: Final = 2.0**30
_MINUTE: Final = 60.0
_HOUR: Final = 3600.0
#: Sizes up to which memory is rounded to a step: at most some 6 % are lost, and from 16 GiB on the
#: request is a whole number of GiB.
_MEMORY_STEPS: Final = (
    (1 * _GIB, 32 * _MIB),
    (4 * _GIB, 64 * _MIB),
    (16 * _GIB, 256 * _MIB),
    (256 * _GIB, _GIB),
)
_TIME_STEPS: Final = (
    (0.5 * _HOUR, _MINUTE),
    (4 * _HOUR, 5 * _MINUTE),
    (12 * _HOUR, 15 * _MINUTE),
    (48 * _HOUR, 30 * _MINUTE),
)
#: Added to memory and time: programs differ by some buffers, and nodes by some seconds.
MEMORY_SLACK: Final = 32 * _MIB
TIME_SLACK: Final = _MINUTE


def round_memory(size: float) -> float:
    """Round bytes up to a step that suits their size."""
    return _round_up(size, _MEMORY_STEPS, 8 * _GIB)


def round_time(seconds: float) -> float:
    """Round seconds up to minutes, quarters or hours."""
    return _round_up(seconds, _TIME_STEPS, _HOUR)


def _round_up(value: float, steps: Sequence[tuple[float, float]], last: float) -> float:
    step = next((step for highest, step in steps if value <= highest), last)
    return math.ceil(value / step) * step


def memory_option(size: float) -> str:
    """Bytes as an argument of ``--mem``: 14G, 3840M."""
    mebibytes = math.ceil(size / _MIB)
    return f"{mebibytes // 1024}G" if mebibytes % 1024 == 0 else f"{mebibytes}M"


def time_option(seconds: float) -> str:
    """Seconds as an argument of ``--time``: 01:30:00, 2-00:00:00."""
    minutes = math.ceil(seconds / _MINUTE)
    days, rest = divmod(minutes, 24 * 60)
    clock = f"{rest // 60:02d}:{rest % 60:02d}:00"
    return f"{days}-{clock}" if days else clock
