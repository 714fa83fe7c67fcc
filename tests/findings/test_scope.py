"""The scope of a judgement: running jobs are judged by some figures as by all."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from jobsight.findings.data import read_run
from jobsight.findings.engine import RuleSet
from jobsight.findings.figures import compute_figures
from jobsight.findings.history import add_history
from jobsight.findings.scope import ALL, Scope, theme_of
from jobsight.findings.service import RuleJudge
from jobsight.findings.vocabulary import FIGURES, FigureSet
from jobsight.findings.worker import Evaluation
from jobsight.model import SECOND
from jobsight.simulation.fill import fill
from jobsight.simulation.year import Year
from jobsight.store.findings.due import running_runs, unjudged_runs
from jobsight.store.read.queries import StoredRun
from jobsight.store.store import Store

YEAR = Year(400, running=60)
NOW = YEAR.end * SECOND


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """A made-up year whose ended runs are judged."""
    folder: Path = tmp_path_factory.mktemp("year")
    with Store.open(folder / "store.db") as opened:
        fill(opened, YEAR)
        judge = RuleJudge(opened, RuleSet.load())
        evaluation = Evaluation(opened, judge, clock=lambda: NOW)
        ended = sorted(unjudged_runs(opened.database, 400), key=lambda run: (run.start, run.id))
        assert evaluation.runs(ended).failed == 0
        yield opened


def figures_of(store: Store, run: StoredRun, scope: Scope) -> FigureSet:
    data = read_run(store, run, NOW, scope=scope)
    figures = compute_figures(data, scope)
    add_history(store, data, figures, scope)
    return figures


def test_running_runs_get_the_same_verdicts_as_by_all_figures(store: Store) -> None:
    judge = RuleJudge(store, RuleSet.load())
    fired = 0
    for run in running_runs(store.database, 100, NOW):
        stored = store.run_by_id(run.id)
        assert stored is not None
        measured = judge.measure_running(stored, run.owner, NOW)
        whole = judge.measure(stored, NOW)
        assert measured.work_id == whole.work_id
        verdicts = judge.judge(measured.figures, run.owner)
        assert verdicts == judge.judge(whole.figures, run.owner)
        fired += any(each.outcome == "fired" for each in verdicts)
    assert fired


def test_each_theme_computes_its_own_figures(store: Store) -> None:
    scopes = {theme: _scope_of(theme) for theme in {theme_of(name) for name in FIGURES}}
    runs = store.runs(limit=500)
    gpu = [run for run in runs if run.info.gpus][:3]
    for run in [*runs[:6], *gpu]:
        whole = figures_of(store, run, ALL).values
        for theme, scope in scopes.items():
            alone = figures_of(store, run, scope).values
            names = [name for name in whole if theme_of(name) == theme]
            assert {name: alone.get(name) for name in names} == {
                name: whole[name] for name in names
            }, theme


def _scope_of(theme: str) -> Scope:
    names = tuple(name for name in FIGURES if theme_of(name) == theme)

    class Condition:
        figures = names

    class OneTheme:
        condition, requires, excuses = Condition, None, ()
        severities, cost = (), {}

    return Scope.of_rules([OneTheme])  # type: ignore[list-item]


def test_figures_of_texts_are_known_to_be_missing() -> None:
    rules = RuleSet.load().rules
    scope = Scope.of_rules(rule for rule in rules.values() if rule.when != "ended")
    # Its text names what would have fitted, which takes the figures of earlier runs.
    assert not scope.describes(rules["out-of-memory"])
    assert scope.describes(rules["memory-near-limit"])
    assert ALL.describes(rules["out-of-memory"])
