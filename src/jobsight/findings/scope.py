"""Which figures of a run are computed: all of them, or those that some rules are decided by.

Running jobs are judged every few minutes by a few of the rules. :meth:`Scope.of_rules` finds the
themes of :mod:`jobsight.findings.analysis` and the parts of the history that these rules need;
reading, figures and history skip the others.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, NamedTuple

from jobsight.findings.vocabulary import FIGURES

if TYPE_CHECKING:
    from jobsight.findings.rule_file import Rule

#: Figures that are not part of the theme of their prefix.
_EXCEPTIONS: Final = {
    "memory.pressure_full": "stalls",
    **dict.fromkeys(("cpu.pressure", "io.pressure"), "pressure"),
    **dict.fromkeys(("io.pressure_full", "io.stalled"), "pressure"),
    **dict.fromkeys(("memory.per_core_of_node", "memory.cores_fill_node", "gpu.count"), "shape"),
    **dict.fromkeys(("gpu.cores_per_gpu", "gpu.memory_per_gpu", "gpu.nodes_needed"), "shape"),
    **dict.fromkeys(("gpu.node_cores_per_gpu", "gpu.node_memory_per_gpu"), "shape"),
    **dict.fromkeys(("history.others_cpu_share", "history.others_users"), "others"),
    "history.others_difference": "others",
    "gpu.waiting": "waits",
    **{name: "waits" for name in FIGURES if name.startswith("gpu.wait_")},
    **{name: "change" for name in FIGURES if name.startswith("history.slower_")},
    **{name: "end" for name in FIGURES if name.startswith("history.expected_")},
}
_THEMES: Final = {
    **{name: name for name in ("run", "cpu", "memory", "io", "programs", "idle", "steps", "gpu")},
    "time": "run",
    "queue": "run",
    "files": "io",
    "start": "programs",
    "node": "shape",
    "energy": "energy",
    "history": "history",
    "fit": "fit",
    "array": "array",
}
#: Themes whose figures a theme uses.
_USES: Final = {
    "pressure": ("stalls",),
    "energy": ("gpu", "idle"),
    "shape": ("memory",),
    "steps": ("memory",),
    "fit": ("memory", "shape", "cpu", "run"),
    "array": ("programs",),
    "change": ("cpu", "programs", "io"),
    "history": ("memory",),
}
#: The metrics of the time series that a theme uses, but those of single GPUs.
_METRICS: Final = {
    "gpu": ("gpu.held", "gpu.idle"),
    "waits": (
        "cpu.time",
        "gpu.held",
        "gpu.idle",
        "tasks.blocked",
        "io.read_bytes",
        "pressure.io_full",
        "pressure.memory_full",
    ),
    "cpu": ("cpu.time",),
    "idle": ("cpu.time", "gpu.held", "gpu.idle"),
    "memory": ("memory.used",),
    "stalls": ("pressure.memory_full",),
    "pressure": ("pressure.cpu", "pressure.io", "pressure.io_full"),
    "io": ("files.open", "files.scratch", "io.read_bytes"),
    "programs": ("cpu.time", "tasks.threads", "tasks.running", "tasks.blocked"),
    "energy": ("energy.cpu",),
}


def theme_of(figure: str) -> str:
    """The theme, or the part of the history, that computes a figure."""
    return _EXCEPTIONS.get(figure) or _THEMES[figure.partition(".")[0]]


class Scope(NamedTuple):
    """The themes that are computed; None is all."""

    themes: frozenset[str] | None = None

    @classmethod
    def of_rules(cls, rules: Iterable[Rule]) -> Scope:
        """What decides whether these rules fire, how severe that is and what it costs."""
        # A run shorter than the minimum of a rule is not judged by it.
        themes = {"run"}
        for rule in rules:
            expressions = [rule.condition, rule.requires, *(each for each, _ in rule.excuses)]
            expressions += [each for _, each in rule.severities]
            expressions += rule.cost.values()
            for expression in expressions:
                if expression is not None:
                    themes.update(map(theme_of, expression.figures))
        todo = list(themes)
        while todo:
            used = set(_USES.get(todo.pop(), ())) - themes
            themes |= used
            todo += used
        return cls(frozenset(themes))

    def has(self, theme: str) -> bool:
        return self.themes is None or theme in self.themes

    def describes(self, rule: Rule) -> bool:
        """Whether all figures of the texts and the evidence of a rule are computed."""
        if self.themes is None:
            return True
        names = {name for text in (*rule.text, *rule.change) for name in text.names}
        for _, because in rule.excuses:
            names.update(because.names)
        evidence = rule.evidence
        names.update(filter(None, (evidence.since, evidence.until)))
        names.update((*evidence.programs, *evidence.nodes))
        return all(theme_of(name) in self.themes for name in names if name in FIGURES)

    def metrics(self, every: Iterable[str]) -> list[str]:
        """Those of the metrics of a run that are needed."""
        if self.themes is None:
            return list(every)
        needed = {metric for theme in self.themes for metric in _METRICS.get(theme, ())}
        return [metric for metric in every if metric in needed]


ALL: Final = Scope()
