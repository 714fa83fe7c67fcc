"""The run itself: state, request, and who ran it."""

from __future__ import annotations

from jobsight.findings.analysis.arithmetic import NO_TIME, ratio
from jobsight.findings.data import RunData
from jobsight.findings.program_names import is_interactive_command, is_server, is_session
from jobsight.findings.vocabulary import FigureSet
from jobsight.model import SECOND, real_signal

#: Programs that are looked at, the most CPU time first.
_MAX_PROGRAMS = 5000


def add(data: RunData, figures: FigureSet) -> None:
    info, state, details = data.info, data.state, data.details
    elapsed = None if state.elapsed is None else state.elapsed / SECOND
    figures.set("run.state", state.state)
    figures.set("run.running", state.running)
    figures.set("run.elapsed", elapsed, NO_TIME)
    figures.set("run.start", state.start / SECOND)
    if state.running:
        figures.set("run.end", None, "the run has not ended")
    else:
        end = info.end if info.end is not None else data.on_nodes.counted
        figures.set("run.end", None if end is None else end / SECOND, "its end is not known")
    not_ended = "the run has not ended" if state.running else "it is not known how the run ended"
    figures.set("run.exit_code", info.exit_code, not_ended)
    signal = real_signal(info.exit_signal)
    ended = info.exit_code is not None or info.exit_signal is not None
    figures.set("run.exit_signal", (signal or 0) if ended else None, not_ended)
    for name in ("name", "user", "account", "partition", "qos"):
        figures.set(f"run.{name}", getattr(info, name), "the scheduler's record does not have it")
    figures.set("run.nodes", data.node_count or None, "no node is known")
    tasks = details.tasks if details else None
    figures.set("run.tasks", tasks, "the scheduler's record does not have it")
    figures.set("run.array", info.array_task_id is not None)
    submit_line = (details.submit_line if details else None) or None
    figures.set("run.submit_line", submit_line, "the scheduler's record does not have it")
    _add_exclusive(data, figures, submit_line)
    _add_programs(data, figures, submit_line)
    limit = None if info.time_limit is None else info.time_limit / SECOND
    figures.set("time.limit", limit, "no time limit is known")
    figures.set("time.share", ratio(elapsed, limit), "no time limit is known")
    if state.running and limit is not None and elapsed is not None:
        figures.set("time.left", limit - elapsed)
    else:
        reason = "no time limit is known" if state.running else "the run has ended"
        figures.set("time.left", None, reason)
    waited = None
    if info.submit is not None and info.start is not None:
        waited = max(info.start - info.submit, 0) / SECOND
    figures.set("queue.wait", waited, "the time of the submit is not known")


def _add_exclusive(data: RunData, figures: FigureSet, submit_line: str | None) -> None:
    """Whole nodes were requested: by the command, or because Slurm allocated all CPUs of the nodes
    while fewer were requested."""
    if submit_line is not None and "--exclusive" in submit_line:
        figures.set("run.exclusive", True)
        return
    requested = (data.details.tres_requested if data.details else {}).get("cpu")
    sizes = [shape.cpus for shape in data.shapes]
    if requested is None or data.cores is None or None in sizes or not sizes:
        figures.set("run.exclusive", None, "the request or the size of the nodes is not known")
        return
    whole = sum(size or 0 for size in sizes)
    complete = len(sizes) == data.node_count
    figures.set("run.exclusive", complete and data.cores >= whole and requested < whole)


def _add_programs(data: RunData, figures: FigureSet, submit_line: str | None) -> None:
    programs = data.programs[:_MAX_PROGRAMS]
    by_step = any(step.use.step == "interactive" for step in data.steps)
    by_command = submit_line is not None and is_interactive_command(submit_line)
    if by_step or by_command or any(is_session(program.path) for program in programs):
        figures.set("run.interactive", True)
    elif programs or submit_line is not None:
        figures.set("run.interactive", False)
    if programs:
        figures.set("run.served", any(is_server(program.path) for program in programs))
