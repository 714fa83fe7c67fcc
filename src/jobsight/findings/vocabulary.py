"""The figures of a run that a rule can use: name, unit, group and meaning of each.

This table is the one description of the object that a condition sees; ``docs/findings.md`` lists
it. A figure that is not known is absent from the :class:`FigureSet`, and ``unknown`` says why: a
rule that needs it is withheld, never decided by a zero.
"""

from __future__ import annotations

import math
from typing import Final, Literal, NamedTuple, TypeAlias, get_args

from jobsight.findings.units import Unit, Value

#: The groups of figures. The first five have a coverage; "scheduler" is what Slurm recorded,
#: "history" what earlier runs of the same work did.
Group: TypeAlias = Literal["cpu", "memory", "io", "executables", "gpu", "scheduler", "history"]


GROUPS: Final[tuple[Group, ...]] = get_args(Group)


class Figure(NamedTuple):
    """One figure: a variable of the conditions."""

    name: str
    unit: Unit
    group: Group
    help: str


_TABLE: Final = (
    # The run.
    Figure("run.state", "text", "scheduler", "State of the run: COMPLETED, TIMEOUT, RUNNING ..."),
    Figure("run.running", "flag", "scheduler", "The run has not ended"),
    Figure("run.elapsed", "duration", "scheduler", "Time since the start, or until the end"),
    Figure("run.start", "time", "scheduler", "Start of the run"),
    Figure("run.end", "time", "scheduler", "End of the run"),
    Figure("run.exit_code", "count", "scheduler", "Exit code"),
    Figure("run.exit_signal", "count", "scheduler", "Signal that ended the run, 0 if none"),
    Figure("run.name", "text", "scheduler", "Name of the job"),
    Figure("run.user", "text", "scheduler", "User"),
    Figure("run.account", "text", "scheduler", "Account"),
    Figure("run.partition", "text", "scheduler", "Partition"),
    Figure("run.qos", "text", "scheduler", "Quality of service"),
    Figure("run.nodes", "count", "scheduler", "Number of nodes"),
    Figure("run.tasks", "count", "scheduler", "Number of tasks"),
    Figure("run.array", "flag", "scheduler", "The run is a task of an array"),
    Figure("run.exclusive", "flag", "scheduler", "Whole nodes were requested"),
    Figure("run.interactive", "flag", "executables", "A terminal or a notebook server ran in it"),
    Figure("run.served", "flag", "executables", "A server program ran in it"),
    Figure("run.submit_line", "text", "scheduler", "Command that submitted the job"),
    Figure("time.limit", "duration", "scheduler", "Requested time"),
    Figure("time.share", "share", "scheduler", "Elapsed of requested time"),
    Figure("time.left", "duration", "scheduler", "Time until the limit"),
    Figure("queue.wait", "duration", "scheduler", "Time from submit to start"),
    # CPU.
    Figure("cpu.cores", "count", "scheduler", "Allocated CPUs"),
    Figure("cpu.time", "core time", "cpu", "CPU time used"),
    Figure("cpu.held", "core time", "scheduler", "Allocated CPUs times elapsed time"),
    Figure("cpu.idle", "core time", "cpu", "Held minus used CPU time"),
    Figure("cpu.share", "share", "cpu", "CPU time of what the allocated CPUs could provide"),
    Figure("cpu.mean_cores", "count", "cpu", "Mean number of busy CPUs"),
    Figure("cpu.peak_cores", "count", "cpu", "Most CPUs that were busy in any sample"),
    Figure("cpu.cores_95", "count", "cpu", "Busy CPUs, 95 % quantile over the time"),
    Figure("cpu.system_share", "share", "cpu", "Share of the CPU time spent in the kernel"),
    Figure("cpu.steadiness", "share", "cpu", "Mean of busy CPUs divided by their peak"),
    Figure("cpu.pressure", "share", "cpu", "Share of the time in which a process waited for a CPU"),
    Figure("cpu.core_balance", "share", "cpu", "CPU time of the least used core of an equal share"),
    Figure("cpu.nodes_unused", "count", "cpu", "Nodes on which no program of the user ran"),
    Figure("cpu.unused_node_names", "texts", "cpu", "Names of these nodes"),
    Figure("cpu.node_imbalance", "share", "cpu", "Mean of 1 - rate of the slowest / fastest node"),
    Figure("cpu.imbalance_time", "core time", "cpu", "CPU time that nodes waited for the busiest"),
    # The time after the work.
    Figure("idle.since", "time", "cpu", "Last time at which CPUs or GPUs of the run were used"),
    Figure("idle.duration", "duration", "cpu", "From then to the end, or to now"),
    Figure("idle.share", "share", "cpu", "The same as a share of the elapsed time"),
    Figure("idle.core_time", "core time", "cpu", "CPU time held after the work had ended"),
    Figure("idle.gpu_time", "gpu time", "cpu", "GPU time held after the work had ended"),
    Figure("idle.holder", "text", "executables", "Program that was still alive"),
    Figure("idle.holders", "texts", "executables", "Programs that were still alive"),
    # Memory.
    Figure("memory.requested", "size", "scheduler", "Requested memory, of all nodes"),
    Figure("memory.used", "size", "memory", "Peak of used memory, page cache not included"),
    Figure("memory.share", "share", "memory", "Used of requested memory"),
    Figure("memory.node_requested", "size", "scheduler", "Requested memory of one node"),
    Figure("memory.node_used", "size", "memory", "Peak of used memory on the fullest node"),
    Figure("memory.kernel_peak", "size", "memory", "The kernel's peak, page cache included"),
    Figure("memory.slurm_peak", "size", "scheduler", "MaxRSS of Slurm's accounting"),
    Figure("memory.cache", "size", "memory", "Page cache in the kernel's peak"),
    Figure("memory.unused_time", "memory time", "memory", "Requested minus used, times elapsed"),
    Figure("memory.oom_kills", "count", "memory", "Processes killed for want of memory"),
    Figure("memory.swap_peak", "size", "memory", "Peak of swapped memory"),
    Figure("memory.pressure_full", "share", "memory", "Time in which all waited for memory"),
    Figure("memory.growth_rate", "byte rate", "memory", "Slope over the last two thirds"),
    Figure("memory.growth_share", "share", "memory", "Growth in that time, of the limit"),
    Figure("memory.growth_fit", "share", "memory", "How linear the growth is, R squared"),
    Figure("memory.growth_node", "text", "memory", "Node with the most growth by its limit"),
    Figure("memory.growth_plateau", "flag", "memory", "It has stopped growing"),
    Figure("memory.time_to_limit", "duration", "memory", "Until the limit at that slope"),
    Figure("memory.largest_program", "text", "executables", "Program with the largest process"),
    Figure("memory.largest_process", "size", "executables", "Peak of that process"),
    Figure("memory.per_core_of_node", "size", "scheduler", "Memory of a node divided by its cores"),
    Figure("memory.cores_fill_node", "flag", "scheduler", "Its CPUs leave no room for other jobs"),
    # Input and output.
    Figure("io.read", "size", "io", "Bytes through read calls"),
    Figure("io.written", "size", "io", "Bytes through write calls"),
    Figure("io.storage_read", "size", "io", "Bytes from storage"),
    Figure("io.storage_written", "size", "io", "Bytes to storage"),
    Figure("io.calls", "count", "io", "Read and write calls"),
    Figure("io.calls_rate", "rate", "io", "Read and write calls by elapsed time"),
    Figure("io.bytes_per_call", "size", "io", "Mean size of a read or write call"),
    Figure("io.pressure", "share", "io", "Time in which a process waited for I/O"),
    Figure("io.pressure_full", "share", "io", "Time in which all processes waited for I/O"),
    Figure("io.stalled", "core time", "io", "CPUs held while all processes waited for I/O"),
    Figure("io.top_program", "text", "executables", "Program with the most bytes from storage"),
    Figure("files.open_mean", "count", "io", "Mean number of open files"),
    Figure("files.scratch_peak", "count", "io", "Most files open on scratch at a time"),
    Figure("files.bytes_per_file", "size", "io", "Bytes read and written by open file"),
    # Programs.
    Figure("programs.executions", "count", "executables", "Programs started"),
    Figure("programs.rate", "rate", "executables", "Programs started by elapsed time"),
    Figure("programs.top", "text", "executables", "Program with the most CPU time"),
    Figure("programs.top_share", "share", "executables", "Its share of the CPU time"),
    Figure("programs.top_cores", "count", "executables", "Mean CPUs it kept busy while it ran"),
    Figure("programs.wasteful", "text", "executables", "Program that left the most CPUs idle"),
    Figure("programs.wasteful_cores", "count", "executables", "Mean CPUs it kept busy"),
    Figure("programs.wasteful_share", "share", "executables", "Share of the time in which it ran"),
    Figure("programs.wasteful_idle", "core time", "executables", "CPU time left idle meanwhile"),
    Figure("programs.serial_share", "share", "executables", "CPU time of programs on one core"),
    Figure("programs.threads_peak", "count", "executables", "Most threads at a time"),
    Figure("programs.running_mean", "count", "executables", "Mean threads that could run"),
    Figure("programs.failed", "text", "executables", "Program that failed most"),
    Figure("programs.failed_executions", "count", "executables", "How often it was started"),
    Figure("programs.failures", "count", "executables", "How often it failed"),
    Figure("programs.failed_share", "share", "executables", "Share of its runs that failed"),
    Figure("programs.failed_habit", "share", "executables", "The same in runs of other users"),
    Figure("programs.short", "text", "executables", "Short program that was started most"),
    Figure("programs.short_executions", "count", "executables", "How often"),
    Figure("programs.short_share", "share", "executables", "CPU time in programs under 100 ms"),
    Figure("programs.short_time", "core time", "executables", "The same in CPU time"),
    Figure("programs.short_held", "core time", "executables", "CPU time that they held"),
    Figure("programs.sleep_share", "share", "executables", "Elapsed time in which only sleep ran"),
    Figure("programs.last", "text", "executables", "Program that was seen last"),
    Figure("programs.software", "texts", "executables", "Names of the software that ran"),
    Figure("start.duration", "duration", "executables", "Until a program reached 5 s of CPU time"),
    Figure("start.share", "share", "executables", "The same as a share of the elapsed time"),
    Figure("start.core_time", "core time", "executables", "CPU time held meanwhile"),
    Figure("start.program", "text", "executables", "Program with the most CPU time meanwhile"),
    # Steps.
    Figure("steps.count", "count", "scheduler", "Steps of the batch script"),
    Figure("steps.alike", "share", "scheduler", "Steps that have the most frequent name"),
    Figure("steps.cores_peak", "count", "cpu", "Most CPUs busy by steps at a time"),
    Figure("steps.sequential", "flag", "scheduler", "The steps ran one after the other"),
    Figure("steps.idle", "core time", "cpu", "CPU time left idle while the steps ran"),
    Figure("steps.packed_elapsed", "duration", "cpu", "Elapsed time with the steps side by side"),
    # GPUs.
    Figure("gpu.count", "count", "scheduler", "GPUs of the run"),
    Figure("gpu.unused", "count", "gpu", "GPUs that were never used"),
    Figure("gpu.never_opened", "count", "gpu", "GPUs that no process has ever opened"),
    Figure("gpu.held", "gpu time", "gpu", "GPUs times the time they were held"),
    Figure("gpu.idle", "gpu time", "gpu", "GPU time without any activity"),
    Figure("gpu.unused_time", "gpu time", "gpu", "GPU time of GPUs that were never used"),
    Figure("gpu.idle_share", "share", "gpu", "Idle of held GPU time"),
    Figure("gpu.idle_since", "time", "gpu", "Last activity of any GPU"),
    Figure("gpu.idle_duration", "duration", "gpu", "Time since then"),
    Figure("gpu.utilization", "share", "gpu", "Time in which any kernel ran"),
    Figure("gpu.multiprocessors", "share", "gpu", "Multiprocessors that were busy"),
    Figure("gpu.occupancy", "share", "gpu", "Warps of those that could be held"),
    Figure("gpu.tensor", "share", "gpu", "Tensor cores' activity"),
    Figure("gpu.used", "gpu time", "gpu", "Held GPU time, weighted by the used share"),
    Figure("gpu.used_share", "share", "gpu", "Multiprocessors where known, else utilization"),
    Figure("gpu.memory_peak", "size", "gpu", "Highest memory of any GPU"),
    Figure("gpu.memory_total", "size", "gpu", "Memory of that GPU"),
    Figure("gpu.memory_share", "share", "gpu", "Peak of total GPU memory"),
    Figure("gpu.energy", "energy", "gpu", "Energy of the GPUs"),
    Figure("gpu.idle_energy", "energy", "gpu", "Energy of the GPUs while they were idle"),
    Figure("gpu.imbalance_time", "gpu time", "gpu", "GPU time waited for the busiest GPU"),
    Figure("gpu.throttled_share", "share", "gpu", "Time with reduced clocks"),
    Figure("gpu.throttle_reason", "text", "gpu", "Main reason of reduced clocks"),
    Figure("gpu.faults", "count", "gpu", "Uncorrected ECC and Xid errors"),
    Figure("gpu.fault_kinds", "texts", "gpu", "Kinds and codes of these errors"),
    Figure("gpu.model", "text", "gpu", "Model of the GPUs"),
    Figure("gpu.cores_per_gpu", "count", "scheduler", "Allocated CPUs by GPU"),
    Figure("gpu.node_cores_per_gpu", "count", "scheduler", "CPUs of a node by its GPUs"),
    Figure("gpu.memory_per_gpu", "size", "scheduler", "Requested host memory by GPU"),
    Figure("gpu.node_memory_per_gpu", "size", "scheduler", "Memory of a node by its GPUs"),
    Figure("gpu.nodes_needed", "count", "scheduler", "Fewest nodes that have as many GPUs"),
    Figure("gpu.waiting", "gpu time", "gpu", "Idle GPU time between first and last use"),
    Figure("gpu.wait_cause", "text", "gpu", "Main cause of it: serial host code, data loading ..."),
    Figure("gpu.wait_share", "share", "gpu", "Share of the idle time with that cause"),
    Figure("gpu.wait_causes", "texts", "gpu", "All causes with their shares, the main one first"),
    Figure("gpu.wait_program", "text", "gpu", "Program that used the CPUs meanwhile"),
    # The nodes and the shape.
    Figure("node.cores", "count", "scheduler", "CPUs of the smallest node of the run"),
    Figure("node.memory", "size", "scheduler", "Memory of the smallest node of the run"),
    Figure("node.minimum", "count", "scheduler", "Fewest nodes that would have held the run"),
    Figure("node.cores_per_node", "count", "scheduler", "Allocated CPUs by node"),
    Figure("node.large_memory", "flag", "scheduler", "Nodes of more memory by core than most"),
    Figure("node.normal_memory", "size", "scheduler", "Memory of the usual node"),
    Figure("energy.total", "energy", "cpu", "Energy of the run: CPUs, memory and GPUs"),
    Figure("energy.idle", "energy", "cpu", "Energy held without use"),
    # Earlier runs of the same work.
    Figure("history.runs", "count", "history", "Earlier runs of the same work"),
    Figure("history.failed_runs", "count", "history", "Failed ones of the last 30 days"),
    Figure("history.failed_core_time", "core time", "history", "CPU time that they held"),
    Figure("history.failed_gpu_time", "gpu time", "history", "GPU time that they held"),
    Figure("history.failures_in_a_row", "count", "history", "Failed runs since the last success"),
    Figure("history.failed_fast", "count", "history", "Of these, within 5 minutes"),
    Figure("history.same_failure", "share", "history", "Share with this exit code and program"),
    Figure("history.slower_share", "share", "history", "More CPU time than before a change"),
    Figure("history.slower_core_time", "core time", "history", "CPU time beyond that of before"),
    Figure("history.slower_since", "time", "history", "When the change happened"),
    Figure("history.slower_runs", "count", "history", "Runs since then"),
    Figure("history.slower_change", "text", "history", "What else changed at that time"),
    Figure("history.expected_end", "time", "history", "End expected from earlier runs"),
    Figure("history.expected_earliest", "time", "history", "Its 10 % quantile over these runs"),
    Figure("history.expected_latest", "time", "history", "Its 90 % quantile over these runs"),
    Figure("history.expected_late", "duration", "history", "That end after the time limit"),
    Figure("history.near_limit_share", "share", "history", "Runs within 5 % of the memory limit"),
    Figure("history.others_cpu_share", "share", "history", "Median CPU share of other users"),
    Figure("history.others_users", "count", "history", "Users in that comparison"),
    Figure("history.others_difference", "text", "history", "What they do differently"),
    Figure("history.short_runs_day", "count", "history", "Runs under 5 min of the work in a day"),
    Figure("history.phases", "texts", "history", "Programs with their first and last second"),
    # What would have fitted.
    Figure("fit.memory", "size", "history", "Request of least expected waste"),
    Figure("fit.memory_runs", "count", "history", "Runs that it is based on"),
    Figure("fit.memory_passed", "count", "history", "Runs that would have passed"),
    Figure("fit.memory_per_node", "size", "history", "fit.memory by node, as --mem expects it"),
    Figure("fit.memory_largest", "size", "history", "Largest need of these runs"),
    Figure("fit.memory_largest_per_node", "size", "history", "The same by node"),
    Figure("fit.time", "duration", "history", "Time limit of least expected waste"),
    Figure("fit.time_runs", "count", "history", "Runs that it is based on"),
    Figure("fit.time_passed", "count", "history", "Runs that would have passed"),
    Figure("fit.cores", "count", "history", "Cores that would have sufficed"),
    Figure("fit.gpus", "count", "history", "GPUs that would have sufficed"),
    Figure("fit.wait_now", "duration", "history", "Median wait of jobs of this shape"),
    Figure("fit.wait_fitted", "duration", "history", "Median wait of jobs of the fitting shape"),
    Figure("fit.wait_matches", "count", "history", "Jobs in that comparison"),
    # Arrays.
    Figure("array.tasks", "count", "history", "Ended tasks of the array"),
    Figure("array.failed", "count", "history", "Failed tasks"),
    Figure("array.split_memory", "size", "history", "Memory that most tasks need"),
    Figure("array.split_tasks", "count", "history", "Tasks that fit into it"),
    Figure("array.split_rest_memory", "size", "history", "Memory that the others need"),
    Figure("array.split_rest", "texts", "history", "Task ids of the others"),
    Figure("array.split_saving", "share", "history", "Memory time that two arrays would save"),
    Figure("array.split_saved", "memory time", "history", "The same in memory time"),
    Figure("array.split_own", "memory time", "history", "The part of it that is of this task"),
    Figure("array.start_share", "share", "history", "Mean start-up share of the tasks"),
    Figure("array.start_core_time", "core time", "history", "CPU time held in start-ups"),
)

#: By name.
FIGURES: Final[dict[str, Figure]] = {figure.name: figure for figure in _TABLE}


#: Characters of a text and texts of a list; a submit line may have 16 KiB.
MAX_TEXT: Final = 1000
MAX_TEXTS: Final = 100


class FigureSet:
    """The figures of one run: known values, and why the others are not known."""

    __slots__ = ("coverage", "unknown", "values")

    def __init__(self) -> None:
        #: By name, in the base of the unit: float for numbers, str, bool or list[str].
        self.values: dict[str, Value] = {}
        #: Why a figure is not known, by its name or by its group: "the job has no GPU".
        self.unknown: dict[str, str] = {}
        #: Share of the run that the figures of a group stand for, 0 to 1; 1 is exact.
        self.coverage: dict[Group, float] = {}

    def set(self, name: str, value: Value | None, reason: str = "") -> None:
        """Set a figure; None is not known, for the reason."""
        assert name in FIGURES, name
        if value is None:
            if reason:
                self.unknown[name] = reason[:MAX_TEXT]
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            if math.isfinite(value):
                self.values[name] = float(value)
            else:
                self.unknown[name] = "its value is not finite"
        elif isinstance(value, str):
            self.values[name] = value[:MAX_TEXT]
        elif isinstance(value, list):
            self.values[name] = [text[:MAX_TEXT] for text in value[:MAX_TEXTS]]
        else:
            self.values[name] = value

    def reason(self, name: str) -> str:
        """Why a figure is not known."""
        figure = FIGURES[name]
        return self.unknown.get(name) or self.unknown.get(figure.group) or "it was not measured"
