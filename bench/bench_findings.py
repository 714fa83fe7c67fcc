"""Rules over 100,000 runs on one core, alongside CEL requested every condition of every run."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence

from bench.figures import Figures
from jobsight.findings.engine import RuleSet, Selection
from jobsight.findings.rule_file import parse_rules
from jobsight.findings.units import NUMERIC, Value
from jobsight.findings.vocabulary import FIGURES, FigureSet

RUNS = 100_000
#: Distinct runs; each is judged several times, because 100,000 do not fit into memory at once.
DISTINCT = 5_000
RULES = 60
#: CEL alone is given fewer: the time of each run is what is compared.
SAMPLE = 500
#: Figures that a run without GPUs and without history does not have.
PARTLY_KNOWN = ("gpu", "history")


def rules_text() -> str:
    """Rules as a site has them: a share and a cost, some with an excuse, an alternative, a list."""
    shares = [name for name, figure in FIGURES.items() if figure.unit == "share"]
    costs = [name for name, figure in FIGURES.items() if figure.unit == "core time"]
    lines = ["rules:"]
    for number in range(RULES):
        share, cost = shares[number % len(shares)], costs[number % len(costs)]
        condition = f"{share} < low && {cost} > floor && cpu.cores > 1"
        if number % 4 == 1:
            condition = f"({share} < low || {share} > high) && {cost} > floor"
        if number % 4 == 2:
            condition = f"{cost} / cpu.cores > wait && {share} < low"
        high = "high: 97 %" if "high" in condition else ""
        wait = "wait: 30 h" if "wait" in condition else ""
        floor = "floor: 50 core h" if "floor" in condition else ""
        parameters = ", ".join(filter(None, ("low: 10 %", floor, high, wait)))
        lines += [
            f"  - name: kind-{number}",
            "    title: A rule",
            "    when: ended",
            "    severity: [{severity: critical, if: 'cpu.idle > cpu.time'}, {severity: info}]",
            f"    parameters: {{{parameters}}}",
            f"    condition: '{condition}'",
            "    excuses: [{if: 'run.interactive', because: a person worked in it}]",
            f"    cost: {{core_time: '{cost}'}}",
            f"    text: '{{{share}}} of {{{cost}}} in {{run.name}}'",
            "    change: ['#SBATCH --ntasks={cpu.cores:slurm}']",
            "    evidence: {series: [cpu.time], since: run.start, until: run.end}",
        ]
    return "\n".join(lines)


def made_up_runs(seed: int) -> list[FigureSet]:
    chance = random.Random(seed)
    runs = []
    for number in range(DISTINCT):
        figures = FigureSet()
        for name, figure in FIGURES.items():
            if figure.group in PARTLY_KNOWN and number % 3:
                continue
            figures.set(name, made_up_value(chance, figure.unit, number))
        figures.set("run.running", False)
        figures.coverage["cpu"] = 1.0 if number % 20 else 0.5
        runs.append(figures)
    return runs


def made_up_value(chance: random.Random, unit: str, number: int) -> Value:
    match unit:
        case "text":
            return f"name-{number % 100}"
        case "texts":
            return ["name", "another"]
        case "flag":
            return chance.random() < 0.1
        case "share":
            return chance.random()
        case "count":
            return float(chance.randrange(1, 64))
    return chance.random() * 400_000


def seconds_of(rules: RuleSet, runs: Sequence[FigureSet], times: int) -> tuple[float, int]:
    """The time of judging, and the findings."""
    found = 0
    start = time.process_time()
    for turn in range(times):
        selection = Selection("cluster", f"partition-{turn % 5}", f"account-{turn % 10}")
        for figures in runs:
            found += len(rules.findings(figures, selection))
    return time.process_time() - start, found


def seconds_of_cel(rules: RuleSet, runs: Sequence[FigureSet]) -> float:
    """CEL for each condition, with all figures of the run."""
    from cel_expr_python import cel

    types = {"text": cel.Type.STRING, "texts": cel.Type.List(cel.Type.STRING)}
    variables = {
        name: cel.Type.DOUBLE if each.unit in NUMERIC else types.get(each.unit, cel.Type.BOOL)
        for name, each in FIGURES.items()
    }
    compiled = []
    for rule in rules.rules.values():
        environment = cel.NewEnv(
            variables=variables | dict.fromkeys(rule.parameters, cel.Type.DOUBLE)
        )
        parameters = {name: each.value for name, each in rule.parameters.items()}
        condition = environment.compile(rule.condition.text.replace("> 1", "> 1.0"))
        compiled.append((condition, parameters))
    start = time.process_time()
    for figures in runs:
        for condition, parameters in compiled:
            condition.eval(data={**figures.values, **parameters}).value()
    return time.process_time() - start


def main() -> None:
    figures = Figures()
    rules = RuleSet([parse_rules("bench.yaml", rules_text())])
    runs = made_up_runs(17)
    seconds_of(rules, runs[:SAMPLE], 1)
    times = RUNS // DISTINCT
    half, _ = seconds_of(rules, runs, times // 2)
    whole, found = seconds_of(rules, runs, times)
    alone = seconds_of_cel(rules, runs[:SAMPLE]) / SAMPLE * RUNS
    figures.row(
        f"{RULES} rules over {RUNS:,} runs, {found:,} findings",
        f"CEL for every condition, without texts: {alone:.0f} s",
        f"{whole:.1f} s ({whole / RUNS * 1e6:.0f} us a run)",
        "60 s",
        reached=whole < 60,
    )
    figures.row(
        "the same rules over twice as many runs",
        "-",
        f"{whole / half:.2f} x the time",
        "2.4 x",
        reached=whole < 2.4 * half,
    )
    figures.row(
        "every rule explained (`jobsight explain`), one run",
        "-",
        f"{min(explained(rules, each) for each in runs[:20]) * 1e3:.2f} ms",
        "20 ms",
        reached=min(explained(rules, each) for each in runs[:20]) < 0.02,
    )
    figures.end()


def explained(rules: RuleSet, figures: FigureSet) -> float:
    start = time.process_time()
    rules.judge(figures)
    return time.process_time() - start


if __name__ == "__main__":
    main()
