"""The figures of the group "history": what earlier runs of the same work say about a run.

:func:`add_history` finds the work of a run (:mod:`jobsight.findings.work`), reads its last 200 runs
and adds what they show: failures and their cost, a change of the CPU time, the expected end, what
would have fitted (:mod:`jobsight.findings.fit`), the tasks of its array, the waits of the queue,
and how the same program does elsewhere.
"""

from __future__ import annotations

import math
import statistics
import threading
from bisect import bisect_left
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

from jobsight.errors import StoreError
from jobsight.findings import fit
from jobsight.findings.fit import Fit, PastRun
from jobsight.findings.packed import decode_figures, decode_values
from jobsight.findings.program_names import names_of
from jobsight.findings.scope import ALL, Scope
from jobsight.findings.vocabulary import FigureSet
from jobsight.findings.work import Signature, find_work, name_key, signature_of
from jobsight.model import SECOND
from jobsight.store import history as stored_history
from jobsight.store.findings.works import WorkKey, find_or_add_work
from jobsight.store.history import MAX_EARLIER, ArrayTask, EarlierRun, ProgramUse, Wait
from jobsight.store.read.memory import is_out_of_memory
from jobsight.store.schema.statements import path_digest

if TYPE_CHECKING:
    from jobsight.findings.data import RunData
    from jobsight.store.findings import due
    from jobsight.store.read.queries import StoredRun
    from jobsight.store.read.state import RunState
    from jobsight.store.store import Store

_MINUTE: Final = 60.0
_DAY: Final = 86400.0
#: How far back failures count.
_FAILURE_DAYS: Final = 30
_SHORT: Final = 5 * _MINUTE
#: Runs whose figures are read: decoding those of 200 would take longer than all else.
_DECODED: Final = 60
#: Runs in which a change of the CPU time is looked for, and the fewest on either side of it.
_CHANGE_RUNS: Final = 50
_CHANGE_SIDE: Final = 5
_CHANGE_SHARE: Final = 0.2
_CHANGE_DEVIATIONS: Final = 3.0
#: Share of the runs after it that must be on its side.
_CHANGE_LASTING: Final = 0.8
#: Share of the pairs of a run before it and a run after it in which the later one takes longer, and
#: by how many standard deviations that share is above chance: of the many places that are tried,
#: some look like a change.
_CHANGE_ABOVE: Final = 0.95
_CHANGE_CERTAIN: Final = 3.2
#: Runs of which less of the CPU time was measured are not compared.
_CHANGE_COVERAGE: Final = 0.9
#: Share of an earlier run that must have passed at a phase for the pace up to it to be a forecast.
_PACE: Final = 0.1
#: Phases of a run that are kept, and runs from which an end is expected.
_MAX_PHASES: Final = 8
_PHASE_RUNS: Final = 20
_MIN_PHASE_RUNS: Final = 3
#: Runs whose memory is compared with its limit, and what counts as near.
_LIMIT_RUNS: Final = 20
_MIN_LIMIT_RUNS: Final = 5
_NEAR: Final = 0.95
#: Runs in which a storm of short runs is counted.
_STORM_RUNS: Final = 2000
#: Share of a run up to which its programs are known, from which on they are all of them.
_SEEN_PROGRAMS: Final = 0.9
_MIN_ARRAY: Final = 10
#: Other tasks of an array whose start is compared.
_STARTED_TASKS: Final = 20
_LISTED_TASKS: Final = 20
#: Jobs of one shape that a median wait needs, and the days before the run in which they started.
MIN_WAITS: Final = 30
_WAIT_DAYS: Final = 7
#: Users that a comparison needs, and how long a run must be to be part of it.
MIN_USERS: Final = 5
_MIN_COMPARED: Final = 600 * SECOND
_KEPT: Final = 256

#: States of runs that did not do their work. A run that its user cancelled did not fail.
_FAILED: Final = frozenset(
    {"FAILED", "TIMEOUT", "OUT_OF_MEMORY", "NODE_FAIL", "BOOT_FAIL", "DEADLINE"}
)
_COMPLETED: Final = "COMPLETED"
_NO_HISTORY: Final = "no earlier run of the same work is stored"
_FEW_RUNS: Final = "fewer than three runs of the same work are known"


#: The figures of earlier runs that are used, and those of them that the expected end needs.
_PAST_PHASES: Final = frozenset({"history.phases", "programs.failed", "programs.last"})
_PAST: Final = _PAST_PHASES | frozenset(
    {"fit.memory", "fit.time", "cpu.cores", "cpu.cores_95", "memory.oom_kills",
     "programs.executions", "programs.software", "io.read", "io.written", "run.partition",
     "gpu.model", "node.cores"}
)  # fmt: skip

#: The figure of other tasks of an array that is used.
_PAST_START: Final = frozenset({"start.duration"})


class PastFigures:
    """An earlier run with the figures that were computed of it; those of old runs are not read."""

    __slots__ = ("_coverage", "_names", "_stored", "_values", "run")

    def __init__(
        self, run: EarlierRun, *, old: bool = False, names: frozenset[str] = _PAST
    ) -> None:
        self.run = run
        self._names = names
        self._stored = run.figures
        self._values: dict[str, Any] | None = {} if old else None
        self._coverage = 1.0

    @property
    def values(self) -> dict[str, Any]:
        """Decoded when they are used; of damaged figures none."""
        if self._values is None:
            try:
                self._values, coverage = decode_values(self._stored, self._names)
                self._coverage = coverage.get("cpu", 0.0)
            except StoreError:
                self._values = {}
        return self._values

    @property
    def coverage(self) -> float:
        """The share of the run that its CPU time stands for; 1 if its figures are not read."""
        return self._coverage if self.values else 1.0

    @property
    def seconds(self) -> float:
        return (self.run.elapsed or 0) / SECOND

    @property
    def failed(self) -> bool:
        return self.run.state in _FAILED


class History(NamedTuple):
    """The earlier runs of the work of a run, by their start."""

    work_id: int
    runs: list[PastFigures]


def add_history(store: Store, data: RunData, figures: FigureSet, scope: Scope = ALL) -> int | None:
    """Add the figures of the group "history"; returns the id of the work of the run."""
    figures.coverage["history"] = 1.0
    _add_phases(data, figures)
    past = read_history(store, data, scope)
    if scope.has("array"):
        _add_array(store, data, figures)
    if scope.has("others"):
        _add_others(store, data, figures)
    if past is None:
        figures.unknown["history"] = "the run has neither a script, a name nor programs"
        return None
    ended = [run for run in past.runs if run.run.end is not None]
    figures.set("history.runs", len(ended))
    _add_failures(data, figures, ended)
    _add_short_runs(store, data, figures, past, ended)
    if scope.has("fit"):
        _add_fits(store, data, figures, ended)
    if not ended:
        figures.unknown["history"] = _NO_HISTORY
        return past.work_id
    if scope.has("change"):
        _add_change(data, figures, ended)
    if scope.has("end"):
        _add_expected_end(data, figures, ended)
    _add_near_limit(data, figures, ended)
    return past.work_id


def read_history(store: Store, data: RunData, scope: Scope = ALL) -> History | None:
    """The work of a run, which is added if it is new, and its earlier runs."""
    work = work_of(store, data)
    if work is None:
        return None
    work_id = find_or_add_work(store.database, work)
    names = _PAST if scope.has("fit") or scope.has("change") else _PAST_PHASES
    return History(work_id, read_earlier(store, work_id, data.stored.id, names))


def read_earlier(
    store: Store, work_id: int, run_id: int, names: frozenset[str] = _PAST
) -> list[PastFigures]:
    """The runs of a work that were stored before a run, by their start, with some figures."""
    runs = stored_history.earlier_runs(store.database, work_id, run_id)
    oldest = len(runs) - _DECODED
    return [PastFigures(run, old=index < oldest, names=names) for index, run in enumerate(runs)]


def work_of(store: Store, data: RunData) -> WorkKey | None:
    """The work that a run is a run of."""
    info = data.info
    script = stored_history.script_of_run(store.database, data.stored.id)
    known: list[bytes] = []
    if script is None and info.user and info.name:
        name = name_key(info.name)
        known = stored_history.works_of_name(store.database, info.cluster, info.user, name)
    signature = (
        signature_of((program.path, program.cpu) for program in data.programs)
        if script is None
        else Signature()
    )
    complete = data.state.state == _COMPLETED and _saw_all_programs(data)
    return find_work(info, signature, script=script, complete=complete, known=known)


def _saw_all_programs(data: RunData) -> bool:
    """Whether the programs of the run are known: else it may look as if it had ended early."""
    # Imported here: the figures need numpy, and what would have fitted does not.
    from jobsight.findings.figures import share_of

    known = [node.coverage.get("executables") for node in data.nodes]
    return bool(known) and all(each is None or share_of(each) >= _SEEN_PROGRAMS for each in known)


def figure_values(data: bytes) -> dict[str, Any]:
    """The values of stored figures; of a damaged row none."""
    try:
        return dict(decode_figures(data).values)
    except StoreError:
        return {}


def _number(values: dict[str, Any], name: str) -> float | None:
    value = values.get(name)
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not math.isfinite(value):
        return None
    return float(value)


# --- failures -------------------------------------------------------------------------------------


def _add_failures(data: RunData, figures: FigureSet, past: Sequence[PastFigures]) -> None:
    """Failures of earlier runs and of this one, which counts if it has failed."""
    since = data.start - int(_FAILURE_DAYS * _DAY) * SECOND
    failed = [run for run in past if run.failed and run.run.start >= since]
    now_failed = not data.state.running and data.state.state in _FAILED
    elapsed = (data.state.elapsed or 0) / SECOND
    core_time = sum((run.run.cpus or 0) * run.seconds for run in failed)
    gpu_time = sum(_gpu_seconds(run.run, run.seconds) for run in failed)
    if now_failed:
        core_time += (data.info.cpus or 0) * elapsed
        gpu_time += data.gpu_count * elapsed
    figures.set("history.failed_runs", len(failed) + now_failed)
    figures.set("history.failed_core_time", core_time)
    figures.set("history.failed_gpu_time", gpu_time)
    in_a_row: list[PastFigures] = []
    if now_failed or data.state.running:
        for run in reversed(past):
            if run.run.state == _COMPLETED:
                break
            if run.failed:
                in_a_row.append(run)
    count = len(in_a_row) + now_failed
    figures.set("history.failures_in_a_row", count)
    fast = sum(run.seconds < _SHORT for run in in_a_row)
    figures.set("history.failed_fast", fast + (now_failed and elapsed < _SHORT))
    if now_failed and in_a_row:
        own = (
            data.info.exit_code,
            data.info.exit_signal,
            figures.values.get("programs.failed") or figures.values.get("programs.last"),
        )
        same = sum(_failure_of(run) == own for run in in_a_row)
        figures.set("history.same_failure", (same + 1) / count)


def _failure_of(run: PastFigures) -> tuple[int | None, int | None, Any]:
    program = run.values.get("programs.failed") or run.values.get("programs.last")
    return run.run.exit_code, run.run.exit_signal, program


def _gpu_seconds(run: EarlierRun, seconds: float) -> float:
    if run.gpu_held_time is not None:
        return run.gpu_held_time / SECOND
    return (run.gpus or 0) * seconds


def _add_short_runs(
    store: Store, data: RunData, figures: FigureSet, past: History, ended: Sequence[PastFigures]
) -> None:
    since = data.start - int(_DAY) * SECOND
    of_day = [run for run in ended if run.run.start >= since]
    short = sum(run.seconds < _SHORT for run in of_day)
    if len(ended) == len(of_day) == short == MAX_EARLIER:
        short = stored_history.count_short_runs(
            *(store.database, past.work_id, data.stored.id, since, int(_SHORT) * SECOND),
            _STORM_RUNS,
        )
    is_short = not data.state.running and (data.state.elapsed or 0) < _SHORT * SECOND
    figures.set("history.short_runs_day", short + is_short)


# --- slower ---------------------------------------------------------------------------------------


class Change(NamedTuple):
    """A lasting change of a sequence: the place of the first new value, and the shift."""

    first: int
    share: float


def find_change(values: Sequence[float]) -> Change | None:
    """The strongest lasting rise: of more than 20 % and three median absolute deviations.

    The deviations are those on either side of the change, so that the rise itself does not hide
    it. None if there is no such rise.
    """
    best: tuple[float, Change] | None = None
    for index in range(_CHANGE_SIDE, len(values) - _CHANGE_SIDE + 1):
        before, after = values[:index], values[index:]
        low, high = statistics.median(before), statistics.median(after)
        if low <= 0 or high / low - 1 <= _CHANGE_SHARE:
            continue
        middle = (low + high) / 2
        if sum(value > middle for value in after) < _CHANGE_LASTING * len(after):
            continue
        deviations = [abs(value - low) for value in before] + [abs(value - high) for value in after]
        # Half of the values may be equal while the others vary.
        deviation = statistics.median(deviations) or statistics.fmean(deviations) or low * 1e-6
        strength = (high - low) / deviation
        # The sum of deviations is least where the change is, also if all splits are strong.
        score = -sum(deviations)
        if (
            strength > _CHANGE_DEVIATIONS
            and (best is None or score > best[0])
            and _is_certain(before, after)
        ):
            best = (score, Change(index, high / low - 1))
    return None if best is None else best[1]


def _is_certain(before: Sequence[float], after: Sequence[float]) -> bool:
    """Whether later values are higher than earlier ones in nearly all pairs, and in more of them
    than chance explains (Mann and Whitney)."""
    ordered = sorted(before)
    pairs = len(before) * len(after)
    share = sum(bisect_left(ordered, value) for value in after) / pairs
    deviation = math.sqrt((len(before) + len(after) + 1) / 12 / pairs)
    return share >= _CHANGE_ABOVE and share - 0.5 >= _CHANGE_CERTAIN * deviation


def _add_change(data: RunData, figures: FigureSet, past: Sequence[PastFigures]) -> None:
    completed = [
        run
        for run in past
        if run.run.state == _COMPLETED and run.run.cpu_time and run.coverage >= _CHANGE_COVERAGE
    ]
    values = [(run.run.cpu_time or 0) / SECOND for run in completed]
    starts = [run.run.start for run in completed]
    documents = [run.values for run in completed]
    own = figures.values.get("cpu.time")
    measured = figures.coverage.get("cpu", 0.0) >= _CHANGE_COVERAGE
    if data.state.state == _COMPLETED and isinstance(own, float) and own > 0 and measured:
        values.append(own)
        starts.append(data.start)
        documents.append(figures.values)
    change = find_change(values[-_CHANGE_RUNS:])
    if change is None:
        figures.unknown.setdefault("history.slower_share", "the CPU time has not changed lastingly")
        return
    index = max(len(values) - _CHANGE_RUNS, 0) + change.first
    figures.set("history.slower_share", change.share)
    if isinstance(own, float):
        # Of a run that takes 1 + share of the time before, this part is beyond it.
        figures.set("history.slower_core_time", own * change.share / (1 + change.share))
    figures.set("history.slower_since", starts[index] / SECOND)
    figures.set("history.slower_runs", len(values) - index)
    changed = describe_change(documents[:index], documents[index:])
    if changed:
        figures.set("history.slower_change", changed)


#: Figures whose medians are compared before and after a change, and what they are called.
_COMPARED: Final = (
    ("programs.executions", "programs started"),
    ("io.read", "bytes read"),
    ("io.written", "bytes written"),
    ("cpu.cores", "allocated CPUs"),
)


def describe_change(before: Sequence[dict[str, Any]], after: Sequence[dict[str, Any]]) -> str:
    """What else differs between runs before and after a change; empty if nothing does."""
    before, after = [each for each in before if each], [each for each in after if each]
    if not before or not after:
        return ""
    parts = []
    old, new = _usual_names(before), _usual_names(after)
    added, removed = sorted(new - old), sorted(old - new)
    if added and removed:
        parts.append(f"{', '.join(removed[:3])} was replaced by {', '.join(added[:3])}")
    elif added:
        parts.append(f"{', '.join(added[:3])} was added")
    elif removed:
        parts.append(f"{', '.join(removed[:3])} is no longer used")
    for name, what in (("run.partition", "partition"), ("gpu.model", "GPU model")):
        first, second = _usual(before, name), _usual(after, name)
        if first and second and first != second:
            parts.append(f"the {what} changed from {first} to {second}")
    cores = _median(before, "node.cores"), _median(after, "node.cores")
    if cores[0] and cores[1] and cores[0] != cores[1]:
        parts.append(f"nodes of {cores[1]:.0f} CPUs in place of {cores[0]:.0f}")
    for name, what in _COMPARED:
        low, high = _median(before, name), _median(after, name)
        if low and high and abs(high / low - 1) > _CHANGE_SHARE:
            parts.append(f"{what}: {high / low:.2g} times as many")
    return "; ".join(parts)[:500]


def _usual_names(documents: Sequence[dict[str, Any]]) -> set[str]:
    """Names of software in more than half of the runs."""
    counts = Counter(
        name
        for document in documents
        if isinstance(document.get("programs.software"), list)
        for name in {str(name)[:100] for name in document["programs.software"]}
    )
    return {name for name, count in counts.items() if 2 * count > len(documents)}


def _usual(documents: Sequence[dict[str, Any]], name: str) -> str:
    counts = Counter(str(document[name])[:100] for document in documents if document.get(name))
    return counts.most_common(1)[0][0] if counts else ""


def _median(documents: Sequence[dict[str, Any]], name: str) -> float | None:
    known = [value for document in documents if (value := _number(document, name)) is not None]
    return statistics.median(known) if known else None


# --- the expected end -----------------------------------------------------------------------------


def _add_phases(data: RunData, figures: FigureSet) -> None:
    """The programs with more than 1 % of the CPU time, in the order of their first start."""
    total = sum(program.cpu for program in data.programs)
    phases = [
        (program.first, program.last or program.first, names_of(program.path)[-1])
        for program in data.programs[: 2 * _MAX_PHASES]
        if program.first is not None and program.cpu > 0.01 * total
    ]
    phases.sort()
    figures.set(
        "history.phases",
        [f"{first:.0f} {last:.0f} {name[:60]}" for first, last, name in phases[:_MAX_PHASES]],
    )


def _read_phases(texts: Any) -> dict[str, float]:
    """The second of the first start of each program."""
    phases: dict[str, float] = {}
    for text in texts if isinstance(texts, list) else ():
        first, _, rest = str(text).partition(" ")
        name = rest.partition(" ")[2]
        if first.isdecimal() and name:
            phases.setdefault(name, float(first))
    return phases


def expect_elapsed(
    phases: dict[str, float], elapsed: float, past: Sequence[tuple[dict[str, float], float]]
) -> list[float]:
    """What the elapsed time will be by each of the past runs, sorted.

    ``phases`` has the second of the first start of each program of the running run, ``past`` the
    same of ended runs with their elapsed times. The last program that both have started is the
    phase; the rest of the past run is scaled by how long the run took to get there, unless that is
    too small a part of the past run to say anything about the rest.
    """
    expected = []
    for others, total in past:
        common = [name for name in phases if name in others]
        # How far the past run was when it began the phase that this one is in.
        phase = max(common, key=lambda name: others[name], default=None)
        if phase is None or others[phase] < _MINUTE or total <= others[phase]:
            expected.append(max(total, elapsed))
            continue
        pace = phases[phase] / others[phase] if others[phase] >= _PACE * total else 1.0
        expected.append(max(phases[phase] + (total - others[phase]) * pace, elapsed))
    return sorted(expected)


def _add_expected_end(data: RunData, figures: FigureSet, past: Sequence[PastFigures]) -> None:
    if not data.state.running:
        return
    completed = [run for run in past if run.run.state == _COMPLETED][-_PHASE_RUNS:]
    if len(completed) < _MIN_PHASE_RUNS:
        for name in ("end", "earliest", "latest", "late"):
            reason = "fewer than three earlier runs have completed"
            figures.unknown[f"history.expected_{name}"] = reason
        return
    expected = expect_elapsed(
        _read_phases(figures.values.get("history.phases")),
        (data.state.elapsed or 0) / SECOND,
        [(_read_phases(run.values.get("history.phases")), run.seconds) for run in completed],
    )
    start = data.start / SECOND
    end = start + statistics.median(expected)
    figures.set("history.expected_end", end)
    tenths = statistics.quantiles(expected, n=10, method="inclusive")
    figures.set("history.expected_earliest", start + tenths[0])
    figures.set("history.expected_latest", start + tenths[-1])
    if data.info.time_limit:
        limit = (data.start + data.info.time_limit) / SECOND
        figures.set("history.expected_late", end - limit)


# --- what would have fitted -----------------------------------------------------------------------


def _add_near_limit(data: RunData, figures: FigureSet, past: Sequence[PastFigures]) -> None:
    shares = [
        run.run.memory_used_peak / run.run.memory
        for run in past
        if run.run.memory and run.run.memory_used_peak is not None
    ][-_LIMIT_RUNS:]
    own = _number(figures.values, "memory.share")
    if own is not None:
        shares.append(own)
    if len(shares) >= _MIN_LIMIT_RUNS:
        near = sum(share >= _NEAR for share in shares)
        figures.set("history.near_limit_share", near / len(shares))


class Needs(NamedTuple):
    """What the runs of a work needed, in the order of their starts."""

    memory: list[PastRun]
    time: list[PastRun]
    cores: list[float]
    gpus: list[float]


def read_needs(
    stored: StoredRun, state: RunState, values: dict[str, Any], past: Sequence[PastFigures]
) -> Needs:
    """The needs of the earlier runs, and of this one if it has ended."""
    needs = Needs([], [], [], [])
    before: dict[str, Any] = {}
    for each in past:
        run = each.run
        _add_need(
            needs,
            state=run.state,
            elapsed=each.seconds,
            used=run.memory_used_peak,
            memory=run.memory,
            time_limit=run.time_limit,
            cores=_number(each.values, "cpu.cores_95"),
            gpus=None if run.gpu_count is None else run.gpu_count - (run.gpu_unused_count or 0),
            killed=bool(_number(each.values, "memory.oom_kills")),
            before=before,
        )
        before = each.values
    if not state.running:
        gpus = stored.gpus
        _add_need(
            needs,
            state=state.state,
            elapsed=(state.elapsed or 0) / SECOND,
            used=_number(values, "memory.used"),
            memory=_number(values, "memory.requested"),
            time_limit=stored.info.time_limit,
            cores=_number(values, "cpu.cores_95"),
            gpus=None if gpus.gpu_count is None else gpus.gpu_count - (gpus.gpu_unused_count or 0),
            killed=bool(_number(values, "memory.oom_kills")),
            before=before,
        )
    return needs


def _add_need(  # noqa: PLR0913 -- one for each figure of a request
    needs: Needs,
    *,
    state: str,
    elapsed: float,
    used: float | None,
    memory: float | None,
    time_limit: int | None,
    cores: float | None,
    gpus: float | None,
    killed: bool,
    before: dict[str, Any],
) -> None:
    """Add a run. Of one that failed for another reason than its limits nothing is known: it may
    have ended before it needed what others did."""
    limit = time_limit / SECOND if time_limit else None
    out_of_memory = is_out_of_memory(state) or (killed and state in _FAILED)
    did_work = state in (_COMPLETED, "TIMEOUT")
    if out_of_memory and memory:
        advised = _number(before, "fit.memory")
        needs.memory.append(PastRun(memory, elapsed, memory, True, advised))
    elif did_work and used:
        advised = _number(before, "fit.memory")
        needs.memory.append(PastRun(used, elapsed, memory, False, advised))
    if state == "TIMEOUT" and limit:
        needs.time.append(PastRun(limit, 1.0, limit, True, _number(before, "fit.time")))
    elif state == _COMPLETED and elapsed > 0:
        needs.time.append(PastRun(elapsed, 1.0, limit, False, _number(before, "fit.time")))
    if did_work and cores is not None:
        needs.cores.append(cores)
    if did_work and gpus is not None:
        needs.gpus.append(max(gpus, 0))


def fit_memory(needs: Needs, request: float | None = None) -> Fit | None:
    """The memory of least expected waste, in bytes."""
    return fit.fit_request(
        needs.memory, request=request, slack=fit.MEMORY_SLACK, rounded=fit.round_memory
    )


def fit_time(needs: Needs, request: float | None = None) -> Fit | None:
    """The time limit of least expected waste, in seconds."""
    return fit.fit_request(
        needs.time, request=request, slack=fit.TIME_SLACK, rounded=fit.round_time
    )


def _passed(found: Fit) -> int | None:
    """The runs that would have passed, if there are enough to speak of them."""
    return None if found.few else found.passed


def memory_of_node(memory: float, values: dict[str, Any], nodes: int) -> float:
    """The memory for each node out of that of a run: --mem is that of a node, and they may differ,
    so that the fullest one decides."""
    used, on_node = (_number(values, f"memory.{name}") for name in ("used", "node_used"))
    return fit.round_memory(memory * on_node / used if used and on_node else memory / nodes)


def _add_memory(figures: FigureSet, found: Fit, nodes: int) -> None:
    values = figures.values
    figures.set("fit.memory", found.request)
    figures.set("fit.memory_runs", found.runs)
    figures.set("fit.memory_largest", found.largest)
    largest = memory_of_node(found.largest, values, nodes)
    figures.set("fit.memory_largest_per_node", largest)
    if found.request == _number(values, "memory.requested"):
        # To recommend what is requested is no line to change, and says nothing of the runs.
        for name in ("fit.memory_passed", "fit.memory_per_node"):
            figures.set(name, None, "no other request is expected to waste less")
        return
    figures.set("fit.memory_passed", _passed(found), _FEW_RUNS)
    figures.set("fit.memory_per_node", memory_of_node(found.request, values, nodes))


def _add_fits(store: Store, data: RunData, figures: FigureSet, past: Sequence[PastFigures]) -> None:
    needs = read_needs(data.stored, data.state, figures.values, past)
    memory = fit_memory(needs, _number(figures.values, "memory.requested"))
    if figures.values.get("memory.cores_fill_node") is True:
        figures.unknown["fit.memory"] = "no other job could have used the memory of the node"
    elif memory is None:
        figures.unknown["fit.memory"] = "no run of the same work has a known peak of memory"
    else:
        _add_memory(figures, memory, max(data.node_count, 1))
    time = fit_time(needs, _number(figures.values, "time.limit"))
    if time is None:
        figures.unknown["fit.time"] = "no run of the same work has completed"
    else:
        figures.set("fit.time", time.request)
        figures.set("fit.time_runs", time.runs)
        figures.set("fit.time_passed", _passed(time), _FEW_RUNS)
    cores = fit.fit_count(needs.cores)
    allocated = data.info.cpus or 0
    if cores is not None and allocated:
        figures.set("fit.cores", min(cores, allocated))
    gpus = fit.fit_count(needs.gpus)
    if gpus is not None and any(needs.gpus):
        figures.set("fit.gpus", gpus)
    elif needs.gpus:
        figures.set("fit.gpus", 0)
    _add_waits(store, data, figures)


# --- waits ----------------------------------------------------------------------------------------


class Shape(NamedTuple):
    """The class of jobs that wait alike: exponents of two, and GPUs as they are."""

    cores: int
    memory_per_core: int
    time: int
    gpus: int


def shape_of(cores: float, memory: float, seconds: float, gpus: float) -> Shape:
    """The shape of a request of positive amounts."""
    return Shape(
        round(math.log2(cores)),
        round(math.log2(memory / cores / 2**20)),
        round(math.log2(seconds / _MINUTE)),
        int(gpus),
    )


class Waits(NamedTuple):
    """The median waits of two shapes, in seconds, and the jobs that were compared."""

    now: float
    fitted: float
    matches: int


def compare_waits(
    waits: Iterable[Wait], qos: str | None, now: Shape, fitted: Shape
) -> Waits | None:
    """The waits of two shapes in the same QOS; None with fewer than 30 jobs of either."""
    found: dict[Shape, list[float]] = {now: [], fitted: []}
    for each in waits:
        if each.qos == qos:
            shape = shape_of(each.cpus, each.memory, each.time_limit / SECOND, each.gpus)
            if shape in found:
                found[shape].append(each.wait / SECOND)
    if min(map(len, found.values())) < MIN_WAITS:
        return None
    return Waits(
        statistics.median(found[now]),
        statistics.median(found[fitted]),
        len(found[now]) + len(found[fitted]),
    )


def _add_waits(store: Store, data: RunData, figures: FigureSet) -> None:
    info, values = data.info, figures.values
    memory = _number(values, "memory.requested")
    limit = _number(values, "time.limit")
    if not (info.cpus and memory and limit and info.partition):
        return
    gpus = data.gpu_count
    fitted_gpus = _number(values, "fit.gpus")
    fitted_cores = _number(values, "fit.cores") or info.cpus
    now = shape_of(info.cpus, memory, limit, gpus)
    fitted = shape_of(
        max(min(fitted_cores, info.cpus), 1),
        min(_number(values, "fit.memory") or memory, memory),
        min(_number(values, "fit.time") or limit, limit),
        gpus if fitted_gpus is None else min(fitted_gpus, gpus),
    )
    if now == fitted:
        figures.unknown["fit.wait_fitted"] = "what would have fitted has the same shape"
        return
    # Runs of one hour share what was read.
    hour = 3600 * SECOND
    until = -(-data.start // hour) * hour
    since = until - int(_WAIT_DAYS * _DAY) * SECOND
    database, partition = store.database, info.partition
    waits = _kept(
        store,
        ("waits", info.cluster, partition, until),
        lambda: stored_history.list_waits(database, info.cluster, partition, since, until),
    )
    compared = compare_waits(waits, info.qos, now, fitted)
    if compared is None:
        figures.unknown["fit.wait_fitted"] = f"fewer than {MIN_WAITS} jobs had one of the shapes"
        return
    figures.set("fit.wait_now", compared.now)
    figures.set("fit.wait_fitted", compared.fitted)
    figures.set("fit.wait_matches", compared.matches)


_Kept = TypeVar("_Kept")
_caches: WeakKeyDictionary[Store, OrderedDict[tuple[Any, ...], Any]] = WeakKeyDictionary()
_caching = threading.Lock()


def _kept(store: Store, key: tuple[Any, ...], read: Callable[[], _Kept]) -> _Kept:
    """What many runs have in common, read once."""
    with _caching:
        cache = _caches.setdefault(store, OrderedDict())
        if key in cache:
            cache.move_to_end(key)
            found: _Kept = cache[key]
            return found
    value = read()
    with _caching:
        cache[key] = value
        while len(cache) > _KEPT:
            cache.popitem(last=False)
    return value


# --- the same program elsewhere -------------------------------------------------------------------


class Others(NamedTuple):
    """How other users run a program: medians over users of their medians."""

    users: int
    cpu_share: float
    cores: float


def compare_users(uses: Iterable[ProgramUse], cluster: str, user: str) -> Others | None:
    """The use of a program by others; None with fewer than five users."""
    runs: dict[int, tuple[ProgramUse, int]] = {}
    for use in uses:
        _, known = runs.get(use.run_id, (use, 0))
        runs[use.run_id] = (use, known + use.program_time)
    shares: dict[str, list[float]] = {}
    cores: dict[str, list[float]] = {}
    for use, program_time in runs.values():
        elapsed = use.end - use.start
        is_main = 2 * program_time > use.cpu_time
        if use.user == user or use.cluster != cluster or not is_main or elapsed < _MIN_COMPARED:
            continue
        shares.setdefault(use.user, []).append(min(use.cpu_time / (use.cpus * elapsed), 1.0))
        cores.setdefault(use.user, []).append(use.cpus)
    if len(shares) < MIN_USERS:
        return None
    return Others(
        len(shares),
        statistics.median(map(statistics.median, shares.values())),
        statistics.median(map(statistics.median, cores.values())),
    )


def _add_others(store: Store, data: RunData, figures: FigureSet) -> None:
    top = data.programs[0] if data.programs else None
    if top is None or not top.known or not data.info.user:
        figures.unknown["history.others_users"] = "the program of the run is not known"
        return
    total = sum(program.cpu for program in data.programs)
    if 2 * top.cpu <= total:
        figures.unknown["history.others_users"] = "no program has most of the CPU time"
        return
    hour = data.now // (3600 * SECOND)
    database, path = store.database, top.path
    uses = _kept(
        store,
        ("program", path, hour),
        lambda: stored_history.uses_of_program(database, path_digest(path)),
    )
    others = compare_users(uses, data.info.cluster, data.info.user)
    if others is None:
        reason = f"fewer than {MIN_USERS} other users ran the program"
        figures.unknown["history.others_users"] = reason
        return
    figures.set("history.others_users", others.users)
    figures.set("history.others_cpu_share", others.cpu_share)
    own = data.info.cpus or 0
    if own and (own >= 2 * others.cores or others.cores >= 2 * own):
        difference = f"they run it on {others.cores:.0f} CPUs, this run on {own}"
        figures.set("history.others_difference", difference)


# --- arrays ---------------------------------------------------------------------------------------


def _add_array(store: Store, data: RunData, figures: FigureSet) -> None:
    info = data.info
    if info.array_job_id is None or data.state.running:
        figures.unknown["array.tasks"] = "the run is not an ended task of an array"
        return
    database, array = store.database, (info.cluster, info.array_job_id)
    # All tasks share what was read, until one changes.
    tasks = _kept(
        store,
        ("array", *array, *stored_history.state_of_array(database, *array)),
        lambda: stored_history.tasks_of_array(database, *array),
    )
    figures.set("array.tasks", len(tasks))
    figures.set("array.failed", sum(task.state in _FAILED for task in tasks))
    _add_start_of_tasks(store, data, figures, tasks)
    measured = [task for task in tasks if task.memory_used_peak and task.state == _COMPLETED]
    if len(measured) < _MIN_ARRAY:
        reason = f"fewer than {_MIN_ARRAY} tasks have completed"
        figures.unknown["array.split_saving"] = reason
        return
    split = fit.split_array(
        [float(task.memory_used_peak or 0) for task in measured],
        [(task.end - task.start) / SECOND for task in measured],
        lambda need: fit.round_memory(need * 1.1 + fit.MEMORY_SLACK),
    )
    if split is None:
        figures.unknown["array.split_saving"] = "two requests would save nothing"
        return
    figures.set("array.split_memory", split.request)
    figures.set("array.split_tasks", split.tasks)
    figures.set("array.split_rest_memory", split.rest_request)
    ids = sorted(measured[index].task_id or 0 for index in split.rest)
    listed = [str(task_id) for task_id in ids[:_LISTED_TASKS]]
    if len(ids) > _LISTED_TASKS:
        listed.append("...")
    figures.set("array.split_rest", listed)
    figures.set("array.split_saving", split.saving)
    figures.set("array.split_saved", split.saved)
    # What the tasks save adds up to what the array saves.
    rest = {measured[index].task_id for index in split.rest}
    own = info.array_task_id not in rest and any(
        task.task_id == info.array_task_id for task in measured
    )
    figures.set("array.split_own", (split.rest_request - split.request) * data.span if own else 0.0)


def tasks_judged_early(store: Store, array: due.Array) -> list[due.DueRun]:
    """The ended tasks whose figures were computed when fewer tasks of their array had ended."""
    # Imported here: it loads SQLAlchemy, which a report of a run does without.
    from jobsight.store.findings import due

    count, _ = stored_history.state_of_array(store.database, *array)
    early = []
    for run, stored in due.judged_tasks(store.database, array, stored_history.MAX_TASKS):
        known = figure_values(stored).get("array.tasks")
        if known is not None and known < min(count, stored_history.MAX_TASKS):
            early.append(run)
    return early


def _add_start_of_tasks(
    store: Store, data: RunData, figures: FigureSet, tasks: Sequence[ArrayTask]
) -> None:
    """The start-up of all tasks: as measured in this one and in some others, and in the rest as it
    is in these on average."""
    own = _number(figures.values, "start.duration")
    array = data.info.array_job_id
    if own is None or array is None or not tasks:
        return
    durations = {data.info.array_task_id: own}
    for task_id, stored in stored_history.figures_of_tasks(
        store.database, data.info.cluster, array, _STARTED_TASKS
    ):
        try:
            values, _ = decode_values(stored, _PAST_START)
        except StoreError:
            continue
        duration = _number(values, "start.duration")
        if duration is not None:
            durations.setdefault(task_id, duration)
    usual = statistics.fmean(durations.values())
    shares: list[float] = []
    held = 0.0
    for task in tasks:
        elapsed = (task.end - task.start) / SECOND
        duration = min(durations.get(task.task_id, usual), elapsed)
        held += duration * (task.cpus or 0)
        if elapsed > 0:
            shares.append(duration / elapsed)
    if shares:
        figures.set("array.start_share", statistics.fmean(shares))
    figures.set("array.start_core_time", held)
