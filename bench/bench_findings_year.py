"""The findings of a made-up year: how many are right, how many are missed, and what they cost.

A store is filled by `jobsight simulate fill`, whose truth is known, and judged the whole way:
figures from the store, history, rules, findings back to the store. The same figures are judged by
the conditions of jobstats and Job Defense Shield (bench/peers/*.yaml), which have the same names.
Precision is the share of the reported findings that are right, recall the share of the planted ones
that are reported; a planted kind that another finding covers is named in it and counts as reported.
A kind that is undecided for a run (a symptom of what was planted, or too small to matter) counts
neither way; the number of these runs is printed as well. Runs of which agents saw too little are
not judged at all, which has its own row.

`python -m bench findings_year --runs 100000` chooses the number of runs (by default 20,000),
`--running` how many of them have not ended (by default a fiftieth, at most 2,000), `--seed` another
made-up year, and `--errors KIND` lists wrong and missed findings of a kind. 100,000 runs take some
twenty minutes of one core and 2 GB.

Running jobs are judged twice: once with the truth next to it, and once as the server does it, for
the time: reading, figures, rules and writing of each.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from bench.figures import Figures
from bench.peer_venv import scratch_directory
from jobsight.findings.data import read_run
from jobsight.findings.engine import RuleSet, Selection
from jobsight.findings.figures import compute_figures
from jobsight.findings.finding import Outcome, Verdict
from jobsight.findings.history import add_history, tasks_judged_early
from jobsight.findings.scope import ALL, Scope
from jobsight.findings.service import RuleJudge
from jobsight.findings.surroundings import Surroundings
from jobsight.findings.vocabulary import FigureSet
from jobsight.findings.worker import BATCH_SIZE, Evaluation, Measured
from jobsight.model import SECOND
from jobsight.simulation.fill import Truth, fill
from jobsight.simulation.misbehaviour import KINDS, LIVE
from jobsight.simulation.year import Year
from jobsight.store.findings.due import DueRun, arrays_of_runs, running_runs, unjudged_runs
from jobsight.store.findings.rows import Owner
from jobsight.store.read.queries import StoredRun
from jobsight.store.store import Store
from jobsight.util.batching import batched

RUNS: Final = 20_000
_PEERS: Final = {
    "jobstats": "jobstats.yaml",
    "Job Defense Shield": "job_defense_shield.yaml",
}
_OURS: Final = "jobsight"
#: Goals: seconds of all rules over 100,000 runs and over 2,000 running jobs, and of one run.
_RULES_GOAL, _RUNNING_GOAL, _ONE_GOAL = 60.0, 5.0, 0.020
_MAX_LISTED: Final = 5
#: What the worker requests; `jobsight explain` shows the others.
_STORED: Final = frozenset[Outcome]({"fired", "withheld"})


class Score:
    """Right, wrong and missed findings of one kind."""

    def __init__(self) -> None:
        self.right = self.wrong = self.missed = 0

    @property
    def precision(self) -> float | None:
        reported = self.right + self.wrong
        return self.right / reported if reported else None

    @property
    def recall(self) -> float | None:
        planted = self.right + self.missed
        return self.right / planted if planted else None


class Error(NamedTuple):
    """A finding that is wrong or missing."""

    kind: str
    what: str
    truth: Truth
    verdict: str


class Reported(NamedTuple):
    """What rules say about one run."""

    fired: frozenset[str]
    covered: frozenset[str]
    #: The verdicts of those kinds whose errors are listed.
    listed: dict[str, str]


class Judge:
    """Judges runs the whole way, and counts what is right: by the last judgement of each run."""

    def __init__(
        self, store: Store, truths: dict[tuple[str, int], Truth], listed: set[str]
    ) -> None:
        self._store = store
        self._truths = truths
        self._listed = listed
        self._surroundings = Surroundings(store)
        self.rules = {_OURS: RuleSet.load()}
        folder = Path(__file__).parent / "peers"
        for name, file in _PEERS.items():
            self.rules[name] = RuleSet.load([folder / file], shipped=False)
        self.digest = self.rules[_OURS].digest
        self._scope = Scope.of_rules(
            rule for rule in self.rules[_OURS].rules.values() if rule.when != "ended"
        )
        self._reported: dict[tuple[str, int], dict[str, Reported]] = {}
        self.scores: dict[tuple[str, str], Score] = {}
        #: Runs for which a kind is neither right nor wrong, by kind, and those reported by ours.
        self.undecided: Counter[str] = Counter()
        self.undecided_reported: Counter[str] = Counter()
        #: Kinds that were reported for runs of which too little was seen.
        self.unseen: dict[str, Counter[str]] = {name: Counter() for name in self.rules}
        self.unseen_runs = 0
        self.errors: list[Error] = []
        #: CPU seconds by part of the work, and how many runs.
        self.spent: Counter[str] = Counter()
        self.runs = 0
        self._run: StoredRun | None = None

    @contextmanager
    def _timed(self, part: str) -> Iterator[None]:
        begun = time.process_time()
        yield
        self.spent[part] += time.process_time() - begun

    def measure(self, run: StoredRun, now: int, scope: Scope = ALL) -> Measured:
        with self._timed("reading"):
            data = read_run(self._store, run, now, self._surroundings, scope)
        with self._timed("figures"):
            figures = compute_figures(data, scope)
        with self._timed("history"):
            work_id = add_history(self._store, data, figures, scope)
        self._run = run
        return Measured(figures, work_id)

    def measure_running(self, run: StoredRun, owner: Owner, now: int) -> Measured:
        measured = self.measure(run, now, self._scope)
        selection = Selection(owner.cluster, owner.partition, owner.account)
        rules = self.rules[_OURS]
        with self._timed("rules"):
            fired = rules.fired(measured.figures, selection)
        if all(self._scope.describes(rules.rules[kind]) for kind in fired):
            return measured
        return self.measure(run, now)

    def judge(self, figures: FigureSet, owner: Owner) -> Sequence[Verdict]:
        selection = Selection(owner.cluster, owner.partition, owner.account)
        with self._timed("rules"):
            self.rules[_OURS].judge(figures, selection, outcomes=_STORED)
        verdicts = self.rules[_OURS].judge(figures, selection)
        assert self._run is not None
        info = self._run.info
        self.runs += 1
        self._reported[info.cluster, info.job_id] = {
            name: self._compact(verdicts if name == _OURS else rules.judge(figures, selection))
            for name, rules in self.rules.items()
        }
        return verdicts

    def _compact(self, verdicts: Sequence[Verdict]) -> Reported:
        def kinds(outcome: Outcome) -> frozenset[str]:
            return frozenset(each.kind for each in verdicts if each.outcome == outcome)

        listed = {each.kind: _shown(each) for each in verdicts if each.kind in self._listed}
        return Reported(kinds("fired"), kinds("covered"), listed)

    def count(self) -> None:
        """Compare what was reported with the truth."""
        for key, by_rules in self._reported.items():
            for name, reported in by_rules.items():
                self._count(name, self._truths[key], reported)

    def _count_questions(self, who: str, truth: Truth, fired: set[str]) -> None:
        for question, (planted, answers) in _QUESTIONS.items():
            known = {*truth.labels, *truth.undecided}
            if not planted & known and known & answers:
                continue
            if planted & set(truth.undecided) and not planted & set(truth.labels):
                continue
            score = self.scores.setdefault((who, question), Score())
            if planted & set(truth.labels):
                score.right += bool(answers & fired)
                score.missed += not answers & fired
            else:
                score.wrong += bool(answers & fired & planted)

    def _count(self, who: str, truth: Truth, found: Reported) -> None:
        fired = set(found.fired)
        if truth.seen != "full":
            self.unseen_runs += who == _OURS
            measured = fired - _BY_STATE
            self.unseen[who].update(measured - set(truth.labels))
            return
        # What another finding explains is reported with it.
        reported = fired | found.covered
        self._count_questions(who, truth, fired)
        if who == _OURS:
            self.undecided.update(truth.undecided)
            self.undecided_reported.update(reported & set(truth.undecided))
        for kind in self.rules[who].rules:
            if kind in truth.undecided:
                continue
            score = self.scores.setdefault((who, kind), Score())
            planted = kind in truth.labels
            if planted and kind in reported:
                score.right += 1
            elif planted:
                score.missed += 1
                self._list(who, Error(kind, "missed", truth, found.listed.get(kind, "")))
            elif kind in fired:
                score.wrong += 1
                self._list(who, Error(kind, "wrong", truth, found.listed.get(kind, "")))

    def _list(self, who: str, error: Error) -> None:
        if who == _OURS and error.kind in self._listed:
            self.errors.append(error)


#: Questions that are more than one kind: what was planted, and the kinds that answer it. A GPU that
#: was active for a minute of a day was not used, whatever its mean is.
_QUESTIONS: Final = {
    "GPU held without use": (
        frozenset({"gpu-not-used", "gpu-idle-long"}),
        frozenset({"gpu-not-used", "gpu-idle-long", "gpu-low-use"}),
    ),
    "CPUs held without use": (
        frozenset({"cpu-one-core", "cpu-cores-idle", "cpu-not-used", "program-leaves-cores-idle"}),
        frozenset({"cpu-one-core", "cpu-cores-idle", "cpu-not-used", "program-leaves-cores-idle"}),
    ),
}

#: Decided by the state that the scheduler recorded, whatever agents saw.
_BY_STATE: Final = frozenset(
    {"out-of-memory", "time-limit-reached", "node-failed", "failed-again", "runs-beyond-limit",
     "time-request-unused", "time-limit-ahead"}
)  # fmt: skip


def _shown(verdict: Verdict) -> str:
    figures = ", ".join(f"{name} {value}" for name, value in verdict.figures.items())
    return f"{verdict.outcome} {verdict.reason} ({figures})"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def evaluate(store: Store, judge: Judge, runs: Sequence[DueRun], now: int) -> list[float]:
    """Judge runs in the order of their start; the CPU time of the rules after each quarter."""
    evaluation = Evaluation(store, judge, clock=lambda: now)
    quarters = []
    before = judge.spent["rules"]
    for first in range(0, len(runs), BATCH_SIZE):
        done = evaluation.runs(runs[first : first + BATCH_SIZE])
        if done.failed:
            sys.exit(f"{done.failed} runs could not be judged")
        if (first + BATCH_SIZE) * 4 // len(runs) > len(quarters):
            quarters.append(judge.spent["rules"] - before)
    return quarters


def print_scores(judge: Judge, figures: Figures, *, running: bool) -> None:
    """A row for each kind: ours, and the same by the others."""
    for kind in [*judge.rules[_OURS].rules, *(() if running else _QUESTIONS)]:
        score = judge.scores.get((_OURS, kind))
        if score is None or (running and kind not in LIVE):
            continue
        if not score.right + score.missed + score.wrong:
            continue
        others = {
            name: other for name in _PEERS if (other := judge.scores.get((name, kind))) is not None
        }
        beside = "; ".join(
            f"{name} {_share(other.precision)} / {_share(other.recall)}"
            for name, other in others.items()
        )
        figures.row(
            f"finding {kind}{' of running jobs' if running else ''}: precision / recall, "
            f"{score.right + score.missed:,} planted{_undecided(judge, kind)}",
            beside or "-",
            f"{_share(score.precision)} / {_share(score.recall)}",
            "no lower in either" if others else "0.9 / 0.9",
            reached=_is_better(score, list(others.values())),
        )


def _undecided(judge: Judge, kind: str) -> str:
    """Of a question no more is known than of its kinds."""
    if kind in _QUESTIONS:
        return ""
    return f", {judge.undecided[kind]:,} undecided ({judge.undecided_reported[kind]:,} reported)"


def _is_better(score: Score, others: list[Score]) -> bool:
    """No lower in either than each of the others; where there are none, at least 0.9."""
    if not others:
        precision, recall = score.precision, score.recall
        return (precision is None or precision >= 0.9) and (recall is None or recall >= 0.9)
    return all(
        (score.precision or 0) >= (other.precision or 0)
        and (score.recall or 0) >= (other.recall or 0)
        for other in others
    )


def print_costs(judge: Judge, quarters: list[float], figures: Figures) -> None:
    count = judge.runs
    spent = judge.spent["rules"]
    figures.row(
        f"all rules over {count:,} runs, CPU time of one core",
        "-",
        f"{spent:.1f} s, {spent / count * 100_000:.1f} s for 100,000",
        f"{_RULES_GOAL:.0f} s for 100,000",
        reached=spent / count * 100_000 <= _RULES_GOAL,
    )
    if len(quarters) >= 4:
        first, last = quarters[0], quarters[3] - quarters[2]
        figures.row(
            "the last quarter of these runs against the first",
            "-",
            f"{last / first:.2f} times as long",
            "1.5 times",
            reached=last <= 1.5 * first,
        )
    whole = sum(judge.spent.values()) / count
    parts = ", ".join(f"{part} {each / count * 1000:.2f}" for part, each in judge.spent.items())
    figures.row(
        "one finished run: figures, history and rules",
        "-",
        f"{whole * 1000:.2f} ms ({parts})",
        f"{_ONE_GOAL * 1000:.0f} ms",
        reached=whole <= _ONE_GOAL,
    )


def print_running(store: Store, now: int, live: Judge, figures: Figures) -> None:
    """The CPU time of all running jobs of the store, as the server judges them every few
    minutes: the better of two rounds."""
    rules = live.spent["rules"] / live.runs
    running = running_runs(store.database, live.runs, now)
    rounds = []
    for _ in range(2):
        evaluation = Evaluation(store, RuleJudge(store, RuleSet.load()), clock=lambda: now)
        begun = time.process_time()
        for group in batched(running, BATCH_SIZE):
            evaluation.runs(group)
        rounds.append(time.process_time() - begun)
    each = min(rounds) / len(running)
    figures.row(
        f"{len(running):,} running jobs, CPU time of one core: reading, figures, rules, writing",
        "-",
        f"{min(rounds):.2f} s, {each * 1000:.2f} ms each, {rules * 1000:.2f} of it rules; "
        f"{each * 2000:.1f} s for 2,000",
        f"{_RUNNING_GOAL:.0f} s for 2,000",
        reached=each * 2000 <= _RUNNING_GOAL,
    )


def judge_arrays(store: Store, judge: Judge, runs: Sequence[DueRun], now: int) -> int:
    """Judge the tasks of arrays again that were judged before the last had ended, as the worker
    does; returns how many."""
    evaluation = Evaluation(store, judge, clock=lambda: now)
    again = 0
    for array in sorted(arrays_of_runs(store.database, [run.id for run in runs])):
        early = tasks_judged_early(store, array)
        evaluation.runs(early)
        again += len(early)
    return again


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="bench findings_year")
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--running", type=int)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--errors", action="append", default=[], choices=sorted(KINDS))
    options = parser.parse_args(arguments)
    count, listed = options.runs, set(options.errors)
    figures = Figures()
    year = Year(count, seed=options.seed, running=options.running)
    now = year.end * SECOND
    print(f"the year of --runs {count} --running {year.running} --seed {options.seed}", flush=True)
    with scratch_directory() as folder, Store.open(Path(folder) / "store.db") as store:
        begun = time.process_time()
        truths = {(each.cluster, each.job_id): each for each in fill(store, year)}
        spent = time.process_time() - begun
        figures.row(
            f"filling a store with a made-up year of {count:,} runs",
            "-",
            f"{spent:.0f} s of CPU time, {count / spent:.0f} runs/s",
            "100 runs/s",
            reached=count / spent >= 100,
        )
        judge = Judge(store, truths, listed)
        ended = sorted(unjudged_runs(store.database, count), key=lambda run: (run.start, run.id))
        quarters = evaluate(store, judge, ended, now)
        print_costs(judge, quarters, figures)
        again = judge_arrays(store, judge, ended, now)
        print(f"{again:,} tasks of arrays were judged again when the last had ended")
        judge.count()
        print_scores(judge, figures, running=False)
        print(
            f"{judge.undecided.total():,} pairs of run and kind are undecided, "
            f"{judge.undecided_reported.total():,} of them reported"
        )
        for who, kinds in judge.unseen.items():
            figures.row(
                f"findings from figures of {judge.unseen_runs:,} runs of which agents saw too "
                f"little, and that were not planted, by {who}",
                "-",
                f"{kinds.total():,}" + "".join(f", {kind} {n}" for kind, n in kinds.most_common(3)),
                "0" if who == _OURS else "-",
                reached=who != _OURS or not kinds,
            )
        live = Judge(store, truths, listed)
        running = running_runs(store.database, count, now)
        evaluate(store, live, running, now)
        live.count()
        print_scores(live, figures, running=True)
        print_running(store, now, live, figures)
        for errors in (judge.errors, live.errors):
            _print_errors(errors)
    figures.end()


def _print_errors(errors: list[Error]) -> None:
    seen: Counter[tuple[str, str]] = Counter()
    for error in errors:
        seen[error.kind, error.what] += 1
        if seen[error.kind, error.what] <= _MAX_LISTED:
            truth = error.truth
            print(f"{error.what} {error.kind}: {truth.cluster}:{truth.job_id} {truth.labels}")
            print(f"    {error.verdict}")


if __name__ == "__main__":
    main(sys.argv[1:])
