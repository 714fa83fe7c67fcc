"""The replay of "what would have fitted": a recommendation for each run, from the past only.

Every work (the runs of one script) is walked in the order of submission. Each method recommends a
request from the runs before, which is rounded up to what a user would write (3840M, 14G, 01:30:00).
Without any, and where a method recommends more than the user requested, the user's request is used.
A run that needs more than it got fails: what it held until its end is wasted, and it is repeated
with the user's request. The factor of the last run and of the maximum so far with which
as many runs fail, and the best single request of each work, are known only afterwards and printed
next to. Printed for each method: the waste (GB h, or hours of time limit) against
"last run x 1.2", the share of failed runs, their wasted hours, and the regret, which is the waste
as a share of what was needed.

The data, with fixed random seeds that the method was not tuned on:

* A made-up history of a site: works that are stable, noisy, of several sizes of input, drifting,
  with steps, heavy-tailed or growing with the array index. Requests are such that a fifth of the
  memory is used, as King's College London found over 2.9 million jobs in six months (19 %).
* Works like those of six public workflows of nf-core, whose traces are part of the data of Sizey
  (arXiv 2407.16353; 175 works, 14,249 runs). Drawn from quantiles over its 120 works of ten runs
  and more: the number of runs; of the logarithm of peak memory and of elapsed time the standard
  deviation, the maximum less the median, and the correlation of successive runs; the request
  divided by the median peak.
* Elapsed times with the same statistics, and time limits such that the median run uses a third of
  its limit, as the 1,000 jobs of the public sample of NREL's Eagle do.
* The made-up year of :mod:`jobsight.simulation`, with its habits, failures and unseen runs: memory
  and time of the runs of each script. Of a run that was killed at its limit nobody knows what it
  needed: no method is blamed for it, and all learn of it.

``--traces DIRECTORY`` replays the traces themselves instead (Nextflow's trace files as CSV with the
columns process, submit, peak_rss, realtime and memory; times in ms, sizes in bytes).
"""

from __future__ import annotations

import argparse
import csv
import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from bench.figures import Figures
from jobsight.findings.fit import (
    MEMORY_SLACK,
    TIME_SLACK,
    PastRun,
    fit_request,
    round_memory,
    round_time,
)
from jobsight.simulation.plan import Plan
from jobsight.simulation.year import Year

RUNS = 100_000
GIB = 2.0**30
HOUR = 3600.0
#: One failure in so many runs of a work is accepted.
HARM = 20


class NeededRun(NamedTuple):
    """One run of a work: what it needs, how long it holds it, and what the user requested."""

    need: float
    hours: float
    request: float
    #: It was killed at its request, so that it needed more than ``need``.
    killed: bool = False
    #: Agents saw it; a method learns nothing of a run that they did not see.
    seen: bool = True


Work = list[NeededRun]
Rounding = Callable[[float], float]
#: From the past runs and the user's request to a request; None is no recommendation.
Method = Callable[[Sequence[PastRun], float], float | None]


# --- data -----------------------------------------------------------------------------------------


def made_up_site(seed: int, runs: int) -> list[Work]:
    """Works of eight families; sizes are GiB."""
    generator = random.Random(seed)
    works: list[Work] = []
    count = 0
    while count < runs:
        works.append(_made_up_work(generator))
        count += len(works[-1])
    return works


#: Family and its share of the works.
_FAMILIES = {
    "stable": 34, "noisy": 24, "sizes": 8, "campaigns": 6, "drift": 8, "steps": 8, "heavy": 4,
    "index": 8,
}  # fmt: skip


def _made_up_work(generator: random.Random) -> Work:
    family = generator.choices(list(_FAMILIES), list(_FAMILIES.values()))[0]
    length = min(max(int(4 * generator.paretovariate(0.8)), 2), 800)
    level = generator.lognormvariate(math.log(4), 1.0)
    hours = generator.lognormvariate(0, 1)
    spread = {
        "stable": generator.uniform(0.003, 0.04),
        "noisy": generator.uniform(0.06, 0.25),
        "heavy": generator.uniform(0.5, 0.8),
    }.get(family, generator.uniform(0.01, 0.06))
    sizes = [generator.gauss(0, 0.5) for _ in range(generator.randint(2, 4))]
    shares = [generator.uniform(0.1, 1) for _ in sizes]
    shift = 0.0
    needs = []
    for number in range(length):
        if family == "sizes":
            shift = generator.choices(sizes, shares)[0]
        elif family == "campaigns" and generator.random() < 1 / 40:
            shift = generator.choice(sizes)
        elif family == "drift":
            shift += generator.gauss(0.001, 0.02)
        elif family == "steps" and generator.random() < 1 / 60:
            shift = generator.gauss(0, 0.5)
        elif family == "index":
            shift = math.log(1 + 2 * (number % 50) / 50)
        needs.append(level * math.exp(min(shift + generator.gauss(0, spread), 3)))
    # On the whole a fifth of the memory is used.
    request = math.ceil(max(needs) * generator.choice([1.05, 1.3, 2, 3, 4, 6, 8, 12]))
    return [NeededRun(need, hours * generator.lognormvariate(0, 0.3), request) for need in needs]


#: Quantiles of the traces at 5, 10, 25, 50, 75, 90 and 95 %; see the top of this file.
_QUANTILES = (0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95)
_MEMORY_SPREAD = (0.002, 0.006, 0.017, 0.092, 0.334, 0.669, 1.093)
_TIME_SPREAD = (0.081, 0.136, 0.187, 0.358, 0.758, 1.187, 1.347)
_MEMORY_MAXIMUM = (1.003, 1.01, 1.032, 1.151, 1.581, 2.998, 4.283)
_TIME_MAXIMUM = (1.127, 1.244, 1.379, 1.672, 5.0, 13.92, 23.859)
_CORRELATION = (-0.176, -0.123, -0.016, 0.126, 0.371, 0.627, 0.78)
_REQUEST = (1.284, 1.685, 4.685, 33.7, 196.8, 607.3, 1320.3)
_USE_OF_LIMIT = (0.009, 0.056, 0.226, 0.34, 0.347, 0.352, 0.631)
_LENGTHS = (10, 20, 39, 87, 137, 332, 600)


def _draw(generator: random.Random, values: Sequence[float], at: float | None = None) -> float:
    """A value of a distribution that is given by its quantiles."""
    share = generator.random() if at is None else at
    if share <= _QUANTILES[0]:
        return values[0]
    for index in range(1, len(values)):
        if share <= _QUANTILES[index]:
            low, high = _QUANTILES[index - 1], _QUANTILES[index]
            part = (share - low) / (high - low)
            return values[index - 1] + part * (values[index] - values[index - 1])
    return values[-1]


def like_nf_core(seed: int, runs: int, *, of_time: bool = False) -> list[Work]:
    """Works with the statistics of the public traces; sizes are GiB, or times in hours."""
    generator = random.Random(seed)
    works: list[Work] = []
    count = 0
    while count < runs:
        needs = _like_trace(generator, of_time)
        median = sorted(needs)[len(needs) // 2]
        if of_time:
            use = max(_draw(generator, _USE_OF_LIMIT), 0.05)
            works.append([NeededRun(need, 1.0, max(median / use, max(needs))) for need in needs])
        else:
            # No site has a node for 1,000 times the memory that is needed.
            request = max(median * min(_draw(generator, _REQUEST), 64), max(needs))
            hours = generator.lognormvariate(-1, 1)
            times = [hours * generator.lognormvariate(0, 0.3) for _ in needs]
            works.append(
                [NeededRun(need, time, request) for need, time in zip(needs, times, strict=True)]
            )
        count += len(needs)
    return works


def _like_trace(generator: random.Random, of_time: bool) -> list[float]:
    """The needs of one work. Above the median their logarithm is bounded by the maximum of the
    traces, below it is normal, such that the deviation is that of the traces."""
    # A work that varies more has higher maxima: both are drawn from the same quantile.
    at = generator.random()
    spread = _draw(generator, _TIME_SPREAD if of_time else _MEMORY_SPREAD, at)
    above = math.log(_draw(generator, _TIME_MAXIMUM if of_time else _MEMORY_MAXIMUM, at))
    below = math.sqrt(max(2 * spread**2 - above**2 / 5, spread**2 / 4))
    correlation = _draw(generator, _CORRELATION)
    level = generator.lognormvariate(0, 1.5)
    value = generator.gauss(0, 1)
    needs = []
    for _ in range(int(_draw(generator, _LENGTHS))):
        value = correlation * value + math.sqrt(1 - correlation**2) * generator.gauss(0, 1)
        # From -1 to 1.
        place = math.erf(value / math.sqrt(2))
        needs.append(level * math.exp(above * place**2 if value > 0 else below * value))
    return needs


def read_traces(directory: Path, *, of_time: bool = False) -> list[Work]:
    """The works of Nextflow's trace files."""
    works: dict[tuple[str, str], list[tuple[int, NeededRun]]] = {}
    for file in sorted(directory.glob("*.csv")):
        with file.open(newline="") as lines:
            for row in csv.DictReader(lines):
                try:
                    peak, hours = int(row["peak_rss"]) / GIB, int(row["realtime"]) / 1000 / HOUR
                    memory, limit = int(row["memory"]) / GIB, int(row["time"]) / 1000 / HOUR
                    submit, process = int(row["submit"]), row["process"]
                except (ValueError, KeyError):
                    continue
                run = NeededRun(hours, 1.0, limit) if of_time else NeededRun(peak, hours, memory)
                if peak > 0 and hours > 0:
                    works.setdefault((file.name, process), []).append((submit, run))
    return [[run for _, run in sorted(runs, key=lambda item: item[0])] for runs in works.values()]


def of_year(plans: Sequence[tuple[int, Plan]], *, of_time: bool = False) -> list[Work]:
    """The runs of each script of a made-up year in the order of their submission, as far as they
    say what they needed: those that completed, or were killed at the limit."""
    works: dict[int, Work] = {}
    for number, plan in sorted(plans, key=lambda each: each[1].start - each[1].wait):
        run = _time_of(plan) if of_time else _memory_of(plan)
        if run is not None:
            works.setdefault(number, []).append(run)
    return list(works.values())


def _memory_of(plan: Plan) -> NeededRun | None:
    """GiB of all nodes; a run that reached its time limit has shown its memory, too."""
    request, hours = plan.nodes * plan.memory / GIB, plan.elapsed / HOUR
    seen = plan.seen != "none"
    if plan.state == "OUT_OF_MEMORY":
        return NeededRun(request, hours, request, killed=True, seen=seen)
    if plan.state not in ("COMPLETED", "TIMEOUT"):
        return None
    # A node on which nothing ran has the memory of the daemons only.
    activity = plan.node_activity or [1.0] * plan.nodes
    peaks = sum(plan.peak * (0.02 if share == 0 else 1) for share in activity)
    return NeededRun(peaks / GIB, hours, request, seen=seen)


def _time_of(plan: Plan) -> NeededRun | None:
    """Hours. The scheduler knows the elapsed time of every run."""
    limit = plan.time_limit / HOUR
    if plan.state == "TIMEOUT":
        return NeededRun(limit, 1.0, limit, killed=True)
    return NeededRun(plan.elapsed / HOUR, 1.0, limit) if plan.state == "COMPLETED" else None


# --- methods --------------------------------------------------------------------------------------


def _memory(gibibytes: float) -> float:
    return round_memory(gibibytes * GIB) / GIB


def _time(hours: float) -> float:
    return round_time(hours * HOUR) / HOUR


def _of_memory(past: Sequence[PastRun], request: float) -> float | None:
    fit = fit_request(past, request=request, slack=MEMORY_SLACK / GIB, rounded=_memory)
    return None if fit is None else fit.request


def _of_time(past: Sequence[PastRun], request: float) -> float | None:
    fit = fit_request(past, request=request, slack=TIME_SLACK / HOUR, rounded=_time)
    return None if fit is None else fit.request


def _mean_and_deviations(past: Sequence[PastRun], request: float) -> float | None:
    if not past:
        return None
    # The last 200, as ours.
    needs = [run.need for run in past[-200:]]
    mean = sum(needs) / len(needs)
    return mean + 3 * math.sqrt(sum((need - mean) ** 2 for need in needs) / len(needs))


def _quantile(past: Sequence[PastRun], request: float) -> float | None:
    needs = sorted(run.need for run in past[-200:])
    return needs[math.ceil(0.95 * len(needs)) - 1] if needs else None


def _highest(last: int) -> Method:
    def method(past: Sequence[PastRun], request: float) -> float | None:
        return max((run.need for run in past[-last:]), default=None)

    return method


def _last(factor: float) -> Method:
    def method(past: Sequence[PastRun], request: float) -> float | None:
        return past[-1].need * factor if past else None

    return method


def _last_two(past: Sequence[PastRun], request: float) -> float | None:
    return sum(run.need for run in past[-2:]) / len(past[-2:]) if past else None


LAST = "last run x 1.2"
BASELINES: dict[str, Method] = {
    "user's request": lambda past, request: None,
    LAST: _last(1.2),
    "maximum of last 3": _highest(3),
    "mean + 3 deviations": _mean_and_deviations,
    "quantile 95": _quantile,
    "mean of last 2": _last_two,
}


# --- the replay -----------------------------------------------------------------------------------


class Result(NamedTuple):
    """What a method did to all runs."""

    runs: int
    waste: float
    failures: int
    failed_hours: float
    needed: float
    #: Works with more than 20 runs, and those of them with more than one failure in 20 runs.
    long_works: int
    harmed: int
    #: Mean of the absolute difference of recommendation and need, as a share of the need.
    error: float
    seconds: float

    @property
    def failed_share(self) -> float:
        return self.failures / self.runs


class _Account:
    """Adds up what a method does to runs."""

    def __init__(self) -> None:
        self.waste = self.failed_hours = self.needed = self.error = 0.0
        self.runs = self.failures = self.long_works = self.harmed = 0

    def count(self, run: NeededRun, request: float) -> bool:
        """Count one run with a request; returns whether it failed."""
        self.runs += 1
        self.needed += run.need * run.hours
        self.error += abs(request - run.need) * run.hours
        failed = run.need > request
        if failed:
            self.failures += 1
            self.failed_hours += run.hours
            self.waste += run.request * run.hours
        self.waste += (request - run.need) * run.hours
        return failed

    def end_work(self, runs: int, failed: int) -> None:
        if runs > HARM:
            self.long_works += 1
            self.harmed += failed * HARM > runs

    def result(self, seconds: float = 0.0) -> Result:
        return Result(
            self.runs, self.waste, self.failures, self.failed_hours, self.needed, self.long_works,
            self.harmed, self.error / self.needed, seconds,
        )  # fmt: skip


def replay(works: Sequence[Work], method: Method, rounded: Rounding) -> Result:
    account = _Account()
    begin = time.process_time()
    for work in works:
        past: list[PastRun] = []
        runs = failed = 0
        for run in work:
            advised = method(past, run.request)
            request = run.request if advised is None else min(rounded(advised), run.request)
            if not run.killed:
                runs += 1
                failed += account.count(run, request)
            if run.seen:
                past.append(
                    PastRun(run.need, run.hours, run.request, run.killed, advised and request)
                )
        account.end_work(runs, failed)
    return account.result(time.process_time() - begin)


def replay_maximum(works: Sequence[Work], factor: float, rounded: Rounding) -> Result:
    """The maximum so far, times a factor; without the cost of finding it again in every run."""
    account = _Account()
    for work in works:
        highest: float | None = None
        runs = failed = 0
        for run in work:
            request = run.request
            if highest is not None:
                request = min(rounded(highest * factor), request)
            if not run.killed:
                runs += 1
                failed += account.count(run, request)
            if run.seen:
                highest = run.need if highest is None else max(highest, run.need)
        account.end_work(runs, failed)
    return account.result()


def maximum_with_failures(
    works: Sequence[Work], share: float, rounded: Rounding
) -> tuple[float, Result]:
    """The factor of the maximum so far with which as many runs fail."""
    low, high = 1.0, 64.0
    for _ in range(20):
        middle = math.sqrt(low * high)
        if replay_maximum(works, middle, rounded).failed_share > share:
            low = middle
        else:
            high = middle
    return high, replay_maximum(works, high, rounded)


def last_with_failures(
    works: Sequence[Work], share: float, rounded: Rounding
) -> tuple[float, Result]:
    """The factor of the last run with which as many runs fail."""
    low, high = 1.0, 4096.0
    for _ in range(14):
        middle = math.sqrt(low * high)
        if replay(works, _last(middle), rounded).failed_share > share:
            low = middle
        else:
            high = middle
    return high, replay(works, _last(high), rounded)


def best_afterwards(works: Sequence[Work], rounded: Rounding) -> Result:
    """One request for all runs of a work, that of least waste, which is known only afterwards; at
    most one run in 20 fails."""
    works = [known for work in works if (known := [run for run in work if not run.killed])]
    chosen = []
    for work in works:
        needs = sorted(run.need for run in work)
        tolerated = len(work) // HARM
        candidates = {rounded(need) for need in needs[len(needs) - tolerated - 1 :]}
        chosen.append(min(candidates, key=lambda size: _waste_of(work, size)))
    one = iter(chosen)
    results = [replay([work], _always(next(one)), rounded) for work in works]
    needed = sum(each.needed for each in results)
    return Result(
        sum(each.runs for each in results),
        sum(each.waste for each in results),
        sum(each.failures for each in results),
        sum(each.failed_hours for each in results),
        needed,
        sum(each.long_works for each in results),
        sum(each.harmed for each in results),
        sum(each.error * each.needed for each in results) / needed,
        0.0,
    )


def _always(size: float) -> Method:
    return lambda past, request: size


def _waste_of(work: Work, size: float) -> float:
    waste = 0.0
    for run in work:
        request = min(size, run.request)
        again = run.request if run.need > request else 0.0
        waste += (request + again - run.need) * run.hours
    return waste


def _print(name: str, result: Result, reference: Result) -> None:
    print(
        f"  {name:22} {result.waste / reference.waste:8.2f} {result.failed_share:9.2%} "
        f"{result.failed_hours:12,.0f} {result.waste / result.needed:8.2f} "
        f"{result.harmed:5d}/{result.long_works}",
        flush=True,
    )


class Comparison(NamedTuple):
    """The methods that goals are about."""

    ours: Result
    last: Result
    maximum: Result
    #: The maximum so far, times the factor with which as many runs fail as with ours. The factor is
    #: known only afterwards.
    equal: Result
    #: The same of the last run.
    equal_last: Result


def compare(title: str, works: Sequence[Work], method: Method) -> Comparison:
    """Print the table of one set of data."""
    print(f"{title}: {sum(map(len, works)):,} runs of {len(works):,} works")
    print(
        f"  {'method':22} {'waste':>8} {'failures':>9} {'failed hours':>12} {'regret':>8}  harmed"
    )
    rounded = _memory if method is _of_memory else _time
    results = {name: replay(works, baseline, rounded) for name, baseline in BASELINES.items()}
    reference = results[LAST]
    for name, result in results.items():
        _print(name, result, reference)
    maximum = replay_maximum(works, 1.0, rounded)
    _print("maximum so far", maximum, reference)
    ours = replay(works, method, rounded)
    factor, equal = maximum_with_failures(works, ours.failed_share, rounded)
    _print(f"maximum so far x {factor:.2f}", equal, reference)
    factor, equal_last = last_with_failures(works, ours.failed_share, rounded)
    _print(f"last run x {factor:.2f}", equal_last, reference)
    _print("best of all, afterwards", best_afterwards(works, rounded), reference)
    _print("jobsight", ours, reference)
    return Comparison(ours, reference, maximum, equal, equal_last)


def print_margins(works: Sequence[Work], method: Method) -> None:
    """The same as time series: each recommendation times a factor."""

    def scaled(factor: float) -> Method:
        def recommend(past: Sequence[PastRun], request: float) -> float | None:
            advised = method(past, request)
            return None if advised is None else advised * factor

        return recommend

    print(f"  {'times':22} {'waste':>8} {'failures':>9}")
    reference = replay(works, _last(1.2), _memory)
    for factor in (0.8, 0.9, 1.0, 1.1, 1.25, 1.5):
        result = replay(works, scaled(factor), _memory)
        share = result.waste / reference.waste
        print(f"  {factor:22.2f} {share:8.2f} {result.failed_share:9.2%}", flush=True)


def _sets(traces: Path | None, runs: int, seed: int) -> Iterator[tuple[str, list[Work], Method]]:
    if traces is not None:
        yield "memory, traces", read_traces(traces), _of_memory
        yield "time, traces", read_traces(traces, of_time=True), _of_time
        return
    yield "memory, made-up site", made_up_site(seed, runs), _of_memory
    yield "memory, like nf-core", like_nf_core(seed + 1, runs), _of_memory
    yield "time, like nf-core and Eagle", like_nf_core(seed + 2, runs, of_time=True), _of_time
    year = Year(runs, seed=seed)
    ended = runs - year.running
    plans = [(year.appointments[place].work.number, year.plan(place)) for place in range(ended)]
    yield "memory, made-up year", of_year(plans), _of_memory
    yield "time, made-up year", of_year(plans, of_time=True), _of_time


def main() -> None:
    parser = argparse.ArgumentParser(description="Replay of what would have fitted")
    parser.add_argument("--traces", type=Path, help="Directory of Nextflow's trace files")
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--seed", type=int, default=20261)
    chosen = parser.parse_args()
    figures = Figures()
    for title, works, method in _sets(chosen.traces, chosen.runs, chosen.seed):
        ours, last, maximum, equal, equal_last = compare(title, works, method)
        figures.row(
            f"right-sizing, {title}: waste and failures, with as many failures",
            f"last run times the factor that is best afterwards: 1.00, "
            f"{equal_last.failed_share:.1%} fail",
            f"{ours.waste / equal_last.waste:.2f}, {ours.failed_share:.1%} fail",
            "0.70, 2 % fail",
            reached=ours.waste <= 0.7 * equal_last.waste and ours.failed_share <= 0.02,
        )
        figures.row(
            f"right-sizing, {title}: waste and failures",
            f"last run x 1.2: 1.00, {last.failed_share:.1%} fail",
            f"{ours.waste / last.waste:.2f}, {ours.failed_share:.1%} fail",
            "0.70, 2 % fail",
            reached=ours.waste <= 0.7 * last.waste and ours.failed_share <= 0.02,
        )
        if method is _of_memory:
            figures.row(
                f"right-sizing, {title}: waste, with no more failures",
                f"maximum so far: 1.00, {maximum.failed_share:.1%} fail",
                f"{ours.waste / maximum.waste:.2f}, {ours.failed_share:.1%} fail",
                "0.75",
                reached=ours.waste <= 0.75 * maximum.waste and ours.failures <= maximum.failures,
            )
            figures.row(
                f"right-sizing, {title}: waste at equal failures",
                "maximum so far times the factor that is best afterwards: 1.00",
                f"{ours.waste / equal.waste:.2f}",
                "0.75",
                reached=ours.waste <= 0.75 * equal.waste,
            )
        else:
            # A time limit that is too long holds nothing: the goal is that few runs are killed.
            two = replay(works, _last_two, _time)
            figures.row(
                f"right-sizing, {title}: waste and failures",
                f"mean of last 2: 1.00, {two.failed_share:.1%} fail",
                f"{ours.waste / two.waste:.2f}, {ours.failed_share:.1%} fail",
                "1.00, 5 % fail",
                reached=ours.waste < two.waste and ours.failed_share <= 0.05,
            )
        figures.row(
            f"right-sizing, {title}: works of which more than 1 run in 20 fails",
            f"last run x 1.2: {last.harmed} of {last.long_works}",
            f"{ours.harmed} of {ours.long_works}",
            "0",
            reached=ours.harmed == 0,
        )
        figures.row(
            f"right-sizing, {title}: CPU seconds for 100,000 runs",
            "-",
            f"{ours.seconds / ours.runs * RUNS:.0f}",
            "60",
            reached=ours.seconds / ours.runs * RUNS <= 60,
        )
    print_margins(made_up_site(chosen.seed, chosen.runs // 10), _of_memory)
    figures.end()


if __name__ == "__main__":
    main()
