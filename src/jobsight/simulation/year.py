"""A year of runs in the order of their submission.

:class:`Year` chooses the users and their scripts, and when each runs. Every run has its own random
numbers, which follow from the random seed and its number: they give the same records in
any order.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from jobsight.simulation.misbehaviour import MISBEHAVIOUR, Misbehaviour, plant, settle, shrink
from jobsight.simulation.plan import Plan
from jobsight.simulation.records import Identity, SimulatedRun, make_run
from jobsight.simulation.site import make_users
from jobsight.simulation.works import TEMPLATES, Template, Work, choose, make_work, plan_run

#: The last second of the year by default: 2026-11-01 UTC.
END: Final = 1_793_491_200
_DAY: Final = 86400
_FIRST_JOB: Final = 4_200_000
#: Shares of the runs of which agents saw a part only, or nothing.
_LOW, _NONE = 0.03, 0.03
#: Share of the runs without a habit that fail, and that their owner cancels.
_FAILED, _CANCELLED = 0.03, 0.03
#: Share of the runs of a script with a habit that are short trials.
_TRIALS: Final = 0.1
#: In a smaller site nobody changes a habit, so that every kind occurs.
_LEARNING_RUNS: Final = 10_000
#: Fewest runs of a script whose kind needs earlier runs, and of the others.
_HISTORY_RUNS, _RUNS = 16, 3
#: Runs of a storm of short ones, if the year is large enough for one.
_STORM_RUNS, _STORM_YEAR = 330, 1000
#: Runs of a chain, each of which waits for the one before.
_CHAIN: Final = 4


class Appointment(NamedTuple):
    """One submission of a script."""

    #: Seconds since 1970.
    start: int
    work: Work
    #: The number of it among the runs of the script, and whether it still runs at the end.
    number: int
    running: bool
    #: Of an array: the task, and how many there are.
    task: int | None = None
    tasks: int = 0
    #: The component of a heterogeneous job.
    het_offset: int | None = None


class Year:
    """All runs of a made-up site: iterate over :meth:`runs`."""

    def __init__(
        self,
        runs: int,
        *,
        days: int = 365,
        seed: int = 1,
        running: int | None = None,
        end: int = END,
    ) -> None:
        """``running`` jobs of all have not ended at ``end``, by default a fiftieth."""
        self.seed = seed
        self.days = days
        self.end = end
        self.begin = end - days * _DAY
        self.count = runs
        self.running = min(runs, max(1, min(2000, runs // 50)) if running is None else running)
        random = np.random.default_rng([seed, 0])
        self.users = make_users(min(max(runs // 150, 12), 400), random)
        self.works = self._make_works(random)
        self.appointments = self._make_appointments(random)

    def runs(self, first: int = 0, last: int | None = None) -> Iterator[SimulatedRun]:
        """The runs from one number to another, in the order of their submission."""
        for number in range(first, len(self.appointments) if last is None else last):
            yield self._run(number)

    def plan(self, number: int) -> Plan:
        """The plan of one run."""
        random = np.random.default_rng([self.seed, 1, number])
        return self._plan(self.appointments[number], random)

    def _make_works(self, random: np.random.Generator) -> list[Work]:
        kinds = list(MISBEHAVIOUR.values())
        count = max(2 * len(kinds), self.count // 60)
        works: list[Work] = []
        for number in range(count):
            # Every kind in turn; every other script behaves.
            kind = kinds[number // 2 % len(kinds)] if number % 2 else None
            works.append(self._make_work(number, kind, random))
        _count_peers(works)
        return works

    def _make_work(
        self, number: int, kind: Misbehaviour | None, random: np.random.Generator
    ) -> Work:
        user = self.users[int(len(self.users) * float(random.random()) ** 1.6)]
        template = _template(kind, random)
        work = make_work(number, user, template, random, habit=kind.name if kind else "")
        if kind is not None:
            _set_habit(work, kind, random)
            if self.count < _LEARNING_RUNS and not kind.history:
                work.habit_since, work.habit_until = 0.0, 1.0
        one_node = work.nodes == 1 and not work.gpus and 1 < work.cpus <= 16
        work.cores_measured = kind is None and one_node and number % 8 == 0
        if "array" in template.tags and work.habit in ("", "array-split", "array-start-up"):
            work.array_size = int(choose(random, (24, 40, 60)))
        work.het = kind is None and "mpi" in template.tags and bool(random.random() < 0.15)
        if work.begin == 0 and work.habit != "slower-than-before" and random.random() < 0.5:
            work.begin = float(random.uniform(0, 0.6))
            work.end = float(random.uniform(work.begin + 0.25, 1.0))
        return work

    def _make_appointments(self, random: np.random.Generator) -> list[Appointment]:
        counts = self._counts(random)
        made: list[Appointment] = []
        for work, count in zip(self.works, counts, strict=True):
            made += self._of_work(work, count, random)
        made.sort(key=lambda each: (each.start, each.work.number, each.number))
        ended = made[: self.count - self.running]
        # These replace the last ones of the year.
        running = [self._running(number, random) for number in range(self.running)]
        return ended + running

    def _counts(self, random: np.random.Generator) -> list[int]:
        """How often each script runs: a few very often."""
        least = np.array([self._fewest(work) for work in self.works])
        weights = random.permutation(np.arange(1, len(self.works) + 1) ** -0.6)
        left = self.count - int(least.sum())
        if left <= 0:
            counts = [max(1, int(share)) for share in least * self.count / least.sum()]
            counts[0] += max(0, self.count - sum(counts))
            return counts
        more = np.floor(weights / weights.sum() * left).astype(int)
        more[: left - int(more.sum())] += 1
        return [int(count) for count in least + more]

    def _fewest(self, work: Work) -> int:
        if work.habit == "short-runs" and self.count >= _STORM_YEAR:
            return _STORM_RUNS
        if work.habit in ("array-start-up", "array-split", "slower-than-before"):
            return 24
        return _HISTORY_RUNS if work.habit and MISBEHAVIOUR[work.habit].history else _RUNS

    def _of_work(self, work: Work, count: int, random: np.random.Generator) -> list[Appointment]:
        made = self._submit(work, count, random)
        since = self.begin + work.habit_since * self.days * _DAY
        work.runs = len(made)
        work.habit_first = sum(each.start < since for each in made)
        return made

    def _submit(self, work: Work, count: int, random: np.random.Generator) -> list[Appointment]:
        first, length = self.begin + work.begin * self.days * _DAY, self.days * _DAY
        span = max(length * (work.end - work.begin), 1.0)
        if work.habit == "short-runs":
            # All in a few hours of a few days, of one date each.
            days = np.floor(random.uniform(0, span / _DAY, _storms(count))) * _DAY
            moments = days[np.arange(count) % len(days)] + random.uniform(0, 9000, count)
            first = first // _DAY * _DAY + 36_000
        else:
            moments = random.uniform(0, span, count)
        if work.array_size:
            return self._arrays(work, count, first, np.sort(moments))
        starts = first + np.sort(moments)
        if work.het:
            # The components of a job start together.
            starts = np.repeat(starts[::2], 2)[:count]
        return [
            Appointment(
                int(start), work, number, running=False, het_offset=number % 2 if work.het else None
            )
            for number, start in enumerate(starts)
        ]

    def _arrays(
        self, work: Work, count: int, first: float, moments: npt.NDArray[np.float64]
    ) -> list[Appointment]:
        made = []
        arrays = max(1, count // work.array_size)
        for number in range(count):
            array = min(number // work.array_size, arrays - 1)
            task = number - array * work.array_size
            tasks = work.array_size if array < arrays - 1 else count - array * work.array_size
            # A few tasks run at the same time.
            start = first + moments[array * len(moments) // arrays] + task // 8 * 600
            made.append(
                Appointment(int(start), work, number, running=False, task=task + 1, tasks=tasks)
            )
        return made

    def _running(self, number: int, random: np.random.Generator) -> Appointment:
        """One in two misbehaves in a way that shows while it runs."""
        live = [work for work in self.works if work.habit and MISBEHAVIOUR[work.habit].live]
        if number % 2 == 0:
            work = live[number // 2 % len(live)]
        else:
            work = choose(random, [work for work in self.works if not work.habit])
        return Appointment(self.end, work, number, running=True)

    def _run(self, number: int) -> SimulatedRun:
        appointment = self.appointments[number]
        work = appointment.work
        random = np.random.default_rng([self.seed, 1, number])
        plan = self._plan(appointment, random)
        job_id, offset = _FIRST_JOB + number, appointment.het_offset
        identity = Identity(
            job_id=job_id,
            boot_id=f"boot-{work.kind.prefix}-{plan.start // (30 * _DAY)}",
            array_job_id=None if appointment.task is None else _array_id(appointment),
            # The components of a job follow each other.
            het_job_id=None if offset is None else job_id - offset,
            het_offset=offset,
            after=self._predecessor(appointment),
        )
        return make_run(plan, identity, random)

    def _predecessor(self, appointment: Appointment) -> int | None:
        """The job that a run waited for; None of most."""
        if appointment.number % _CHAIN == 0 or not _is_chained(appointment):
            return None
        number = self._numbers.get((appointment.work.number, appointment.number - 1))
        if number is None:
            return None
        plan = self.plan(number)
        ended = plan.start + plan.elapsed <= appointment.start and plan.state == "COMPLETED"
        return _FIRST_JOB + number if ended else None

    @cached_property
    def _numbers(self) -> dict[tuple[int, int], int]:
        """The runs of scripts whose runs wait for each other, by script and number of the run."""
        return {
            (each.work.number, each.number): number
            for number, each in enumerate(self.appointments)
            if _is_chained(each)
        }

    def _plan(self, appointment: Appointment, random: np.random.Generator) -> Plan:
        work, start = appointment.work, appointment.start
        position = (start - self.begin) / (self.days * _DAY)
        plan = plan_run(work, start, position, random)
        plan.array_task, plan.array_size = appointment.task, appointment.tasks
        if appointment.het_offset:
            plan.nodes = 1
        if self._goes_wrong(appointment, position, random):
            plan.streak = appointment.number - work.habit_first + 1
            plan.storm = appointment.number % -(-work.runs // _storms(work.runs))
            plant(plan, work, work.habit, random)
            if self._is_trial(appointment, random):
                plan.trial = True
                shrink(plan, float(random.uniform(330, 590)))
        elif not appointment.running:
            _end_otherwise(plan, random)
        if appointment.running:
            self._interrupt(plan, random)
        chance = float(random.random())
        if appointment.running:
            plan.seen = "none" if chance < _NONE else "full"
        else:
            plan.seen = "none" if chance < _NONE else "low" if chance < _NONE + _LOW else "full"
        settle(plan, work)
        return plan

    def _goes_wrong(
        self, appointment: Appointment, position: float, random: np.random.Generator
    ) -> bool:
        work = appointment.work
        chance = float(random.random())
        if not work.habit:
            return False
        if appointment.running:
            return appointment.number // 2 % 9 < 8
        if not work.habit_since <= position <= work.habit_until:
            return False
        # Rare kinds occur in a small site, too.
        return chance < work.habit_rate or (appointment.number == 0 and work.habit_rate > 0)

    def _is_trial(self, appointment: Appointment, random: np.random.Generator) -> bool:
        rare = appointment.number > 0 and float(random.random()) < _TRIALS
        return rare and not appointment.running and not MISBEHAVIOUR[appointment.work.habit].history

    def _interrupt(self, plan: Plan, random: np.random.Generator) -> None:
        """Let a plan be under way at the end of the year."""
        if "gpu-not-used" in plan.labels:
            plan.stretch(max(1.0, 4 * 3600 / plan.elapsed))
        worked = plan.elapsed
        if "held-after-work" in plan.labels or "time-limit-ahead" in plan.labels:
            done = float(random.uniform(0.9, 0.98))
            if "time-limit-ahead" in plan.labels:
                done = min(0.5, 0.9 * plan.time_limit / worked)
        else:
            done = float(random.uniform(0.3, 0.95))
        if plan.labels & {"memory-grows", "gpu-idle-now"}:
            done = float(random.uniform(0.6, 0.95))
        plan.cut(worked * done)
        plan.start = self.end - round(plan.elapsed)
        plan.running, plan.state = True, "RUNNING"
        if not plan.labels & {"time-limit-ahead", "runs-beyond-limit"}:
            plan.time_limit = max(plan.time_limit, round(worked * 1.15))


def _count_peers(works: list[Work]) -> None:
    """Tell each work how many other users run its program well on the same cluster, and make the
    names of the works of a user different."""
    users: dict[tuple[str, Template], set[str]] = {}
    for work in works:
        if not work.habit:
            users.setdefault((work.kind.cluster, work.template), set()).add(work.user.name)
    names: set[tuple[str, str]] = set()
    for work in works:
        work.peers = len(users.get((work.kind.cluster, work.template), set()) - {work.user.name})
        if (work.user.name, work.name) in names:
            work.name += "_again"
        names.add((work.user.name, work.name))


def _storms(runs: int) -> int:
    """The days on which a script has its storms of runs."""
    return max(1, runs // 330)


def _is_chained(appointment: Appointment) -> bool:
    """Whether the runs of a script wait for each other."""
    work = appointment.work
    is_plain = not (work.habit or work.array_size or work.het)
    return is_plain and work.number % 6 == 0 and not appointment.running


def _array_id(appointment: Appointment) -> int:
    """An id that no other array has; the ids of its tasks follow no order."""
    work = appointment.work
    number = (appointment.number - (appointment.task or 1) + 1) // max(work.array_size, 1)
    return 1_000_000 + work.number * 1000 + number


def _template(kind: Misbehaviour | None, random: np.random.Generator) -> Template:
    """A kind of work that can go wrong in this way."""
    fitting = [each for each in TEMPLATES if kind is None or each.tags & kind.tags]
    if kind is not None and kind.name != "large-memory-node-not-needed":
        fitting = [each for each in fitting if "bigmem" not in each.tags] or fitting
    weights = np.array([each.weight for each in fitting])
    return fitting[int(random.choice(len(fitting), p=weights / weights.sum()))]


def _set_habit(work: Work, kind: Misbehaviour, random: np.random.Generator) -> None:
    work.habit_rate = kind.rate
    if kind.name == "slower-than-before":
        # There must be runs before and after the change, and the loss must matter.
        work.elapsed = max(work.elapsed, 80 * 3600 / (work.cpus * work.nodes))
        work.habit_since = float(random.uniform(0.4, 0.55))
    elif kind.name == "failed-again":
        # All tries are within a few weeks.
        work.begin = float(random.uniform(0.1, 0.7))
        work.end = work.begin + 0.12
        work.habit_since = work.begin + 0.04
    elif random.random() < 0.2 and not kind.history:
        # Its owner learns of it, or begins with it.
        if random.random() < 0.5:
            work.habit_until = float(random.uniform(0.5, 0.9))
        else:
            work.habit_since = float(random.uniform(0.1, 0.5))


def _end_otherwise(plan: Plan, random: np.random.Generator) -> None:
    """Some runs fail or are cancelled for reasons of their own."""
    chance = float(random.random())
    if chance < _FAILED:
        plan.cut(plan.elapsed * float(random.uniform(0.2, 1.0)))
        plan.phases[-1].failures += 1
        plan.state, plan.exit_code = "FAILED", int(random.integers(1, 3))
    elif chance < _FAILED + _CANCELLED:
        plan.cut(plan.elapsed * float(random.uniform(0.2, 1.0)))
        plan.state = "CANCELLED"
