"""What GPUs did since the agent began to read them, and what of it is a job's.

A :class:`GpuMeter` adds the readings of one GPU up, once for all jobs of the node. A
:class:`JobGpu` is one GPU of one job: it takes the growth of the meter since its last update, or
the job's share of that growth where several jobs use the GPU.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from jobsight.agent.samplers.gpu.nvidia_smi import Printed, parse_number
from jobsight.agent.samplers.gpu.source import Gpu, GpuProcess, GpuReading
from jobsight.agent.samplers.readings import Counter, Gauge
from jobsight.model import GPU_FIGURES, SECOND, Coverage, GpuFault, GpuUse

#: Kinds of faults that are kept for a GPU, and processes whose time is kept.
_MAX_FAULTS: Final = 32
_MAX_PROCESSES: Final = 1024
#: A gap between two readings for which shares of the second one are still taken.
_MAX_GAP: Final = 120 * SECOND

#: Activity that shows that somebody used a GPU without a process that was seen.
_LEAST_ACTIVITY: Final = SECOND // 10

#: Microjoules a second that no GPU needs: 10 kW.
_MOST_POWER: Final = 10**10

ESTIMATED_ENERGY: Final = "power integrated over time"
ESTIMATED_ACTIVITY: Final = "the utilization at each sample"
ESTIMATED_THROTTLING: Final = "the state at each sample"

#: The fields of a reading that SAMS averages.
_GAUGES: Final = (
    *("utilization", "memory_utilization", "memory_used", "memory_total"),
    *("power", "power_limit", "temperature", "clock_graphics", "clock_sm", "clock_memory"),
    *("application_graphics", "application_memory"),
)

#: The figures of a meter that only grow, in the units of GpuUse.
Totals = dict[str, float]


class GpuMeter:
    """The sums of one GPU since its first reading."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu
        self.reading = GpuReading()
        #: The monotonic time of the last reading; None before the first.
        self.time: int | None = None
        #: Field of GpuUse, "throttled REASON", or "known GROUP" -> its sum.
        self.totals: Totals = {}
        #: Nanoseconds of GPU time by PID, and the bytes that each process has now.
        self.process_time: dict[int, float] = {}
        self.process_memory: dict[int, int | None] = {}
        #: Kind and code -> number of faults and the time at which the last was noticed.
        self.faults: dict[tuple[str, int | None], tuple[int, int]] = {}
        #: Group -> why its figures are estimates.
        self.estimated: dict[str, str] = {}
        #: Group -> why its figures are not known now.
        self.missing: dict[str, str] = {}
        #: PID -> its weight in the active time that is not known yet.
        self._weights: dict[int, float] = {}
        self._counters: dict[str, Counter] = {}
        self._energy = Counter()
        #: Energy by the counter, and by power since the counter was last read, in microjoules.
        self._counted: int | None = None
        self._extrapolated = 0.0

    def update(
        self, time: int, wall: int, reading: GpuReading, processes: Iterable[GpuProcess]
    ) -> None:
        """Add a reading; ``processes`` are those that use the GPU now."""
        before, previous = self.time, self.reading
        span = 0 if before is None else time - before
        if span < 0:
            return
        self.reading = reading
        self.time = time
        self._note_missing(reading)
        self._add_memory(span, previous, reading)
        self._add_energy(span, previous, reading)
        self._add_faults(wall, reading)
        self._add_profile(span, reading)
        if span > _MAX_GAP:
            # One value does not stand for minutes.
            span = 0
        active = self._add_activity(span, reading)
        self._add_throttling(span, reading)
        self._add_processes(list(processes), span, active)

    def _grow(self, name: str, amount: float) -> None:
        self.totals[name] = self.totals.get(name, 0) + amount

    def _note_missing(self, reading: GpuReading) -> None:
        self.missing = dict(reading.missing)
        if reading.failure:
            self.missing |= dict.fromkeys(GPU_FIGURES, reading.failure)

    def _add_memory(self, span: int, previous: GpuReading, reading: GpuReading) -> None:
        if reading.memory_used is None:
            return
        before = previous.memory_used if previous.memory_used is not None else reading.memory_used
        self._grow("memory_time", (before + reading.memory_used) / 2 * span / SECOND)
        self._grow("known memory", span)

    def _add_energy(self, span: int, previous: GpuReading, reading: GpuReading) -> None:
        """Take the driver's counter where it was read, and power in the time since."""
        power = reading.power
        if power is not None and span:
            before = previous.power if previous.power is not None else power
            # Milliwatts times seconds are millijoules.
            self._extrapolated += (before + power) / 2 * span / SECOND * 1000
        self._energy_span += span
        if reading.energy is not None:
            if self._counted is None:
                # What was extrapolated until now stays as it was.
                self._base_energy = self.totals.get("energy", 0.0)
            before_counted = self._counted or 0
            self._counted = self._energy.update(reading.energy)
            grown = self._counted - before_counted
            if grown > _MOST_POWER * self._energy_span / SECOND + _MOST_POWER:
                # The counter was reset, and what it had counted is not what was used.
                self._base_energy += self._extrapolated - grown
                self.estimated["energy"] = ESTIMATED_ENERGY
            self._extrapolated, self._energy_span = 0.0, 0
        if reading.energy is None and power is None:
            if "energy" not in self.missing:
                self.missing["energy"] = "not supported by this GPU"
            return
        if self._counted is not None:
            energy = self._base_energy + self._counted + self._extrapolated
        else:
            energy = self._extrapolated
            self.estimated["energy"] = ESTIMATED_ENERGY
        # Power was higher than the counter says: wait for it.
        self.totals["energy"] = max(self.totals.get("energy", 0.0), energy)
        self._grow("known energy", span)

    _base_energy = 0.0
    #: Nanoseconds since the counter was last read.
    _energy_span = 0

    def _add_profile(self, span: int, reading: GpuReading) -> None:
        """Add what the hardware counted between two samples, and the time between them."""
        known = span if reading.profile_span is None else reading.profile_span
        if reading.profile:
            for field, amount in reading.profile.items():
                self._grow(field, amount)
            self._grow("known profile", known)
        if reading.traffic is not None:
            for field, amount in reading.traffic.items():
                self._grow(field, amount)
            for group in ("pcie", "nvlink"):
                if GPU_FIGURES[group][0] in reading.traffic:
                    self._grow(f"known {group}", known)

    def _add_activity(self, span: int, reading: GpuReading) -> float:
        """Add the activity since it was last known; returns the active time."""
        active = 0.0
        if reading.activity is not None:
            known = span if reading.activity_span is None else reading.activity_span
            active = min(1.0, reading.activity) * known
            self._grow("active_time", active)
            self._grow("known activity", known)
        elif reading.utilization is not None and not reading.activity_follows:
            active = reading.utilization / 100 * span
            self._grow("active_time", active)
            self._grow("known activity", span)
            self.estimated["activity"] = ESTIMATED_ACTIVITY
        return active

    def _add_throttling(self, span: int, reading: GpuReading) -> None:
        if reading.throttled is not None:
            for reason, value in reading.throttled.items():
                counter = self._counters.setdefault(reason, Counter())
                self.totals[f"throttled {reason}"] = counter.update(value)
        elif reading.throttled_now is not None:
            for reason in reading.throttled_now:
                self._grow(f"throttled {reason}", span)
            self.estimated["throttling"] = ESTIMATED_THROTTLING
        else:
            return
        self._grow("known throttling", span)

    def _add_faults(self, wall: int, reading: GpuReading) -> None:
        for kind, value in (reading.faults or {}).items():
            counter = self._counters.setdefault(kind, Counter())
            before = counter.total
            if counter.update(value) > before:
                self._fault(kind, None, counter.total - before, wall)
        for code in reading.xids:
            self._fault("xid", code, 1, wall)

    def _fault(self, kind: str, code: int | None, count: int, wall: int) -> None:
        key = (kind, code)
        if key not in self.faults and len(self.faults) >= _MAX_FAULTS:
            key = (kind, None)
        self.faults[key] = (self.faults.get(key, (0, 0))[0] + count, wall)

    def _add_processes(self, processes: list[GpuProcess], span: int, active: float) -> None:
        """Divide the active time among the processes that were there since it was last known: by
        their utilization where the driver gives it, else by the time that they were there."""
        self.process_memory = {one.pid: one.memory for one in processes}
        shares = {one.pid: one.share or 0.0 for one in processes}
        if not any(shares.values()):
            shares = dict.fromkeys(shares, 1.0)
        for pid, share in shares.items():
            self._weights[pid] = self._weights.get(pid, 0.0) + share * span
        total = sum(self._weights.values())
        if not active or not total:
            return
        for pid, weight in self._weights.items():
            grown = self.process_time.pop(pid, 0.0) + active * weight / total
            # Last in the order: the processes that were not seen for longest are dropped first.
            self.process_time[pid] = grown
        self._weights.clear()
        while len(self.process_time) > _MAX_PROCESSES:
            del self.process_time[next(iter(self.process_time))]


class JobGpu:
    """One GPU since it was assigned to a job."""

    def __init__(self, meter: GpuMeter, since: GpuState, wall: int) -> None:
        self.meter = meter
        self.gpu = meter.gpu
        self._last = since
        #: The time and the sums before the last update, between which the sums of a row are.
        self._before: tuple[int, Totals] = (since.time, {})
        #: The sums as of the last row: a time series never decreases.
        self._row: Totals = {}
        #: The sums of the job, as in :attr:`GpuMeter.totals`.
        self.totals: Totals = dict.fromkeys(since.totals, 0.0)
        self.first_seen = self.last_seen = wall
        self.first_time = since.time
        self.held_time = 0
        self.memory_peak: int | None = None
        self.shared = False
        #: Whether a process of the job used it, or anything did while the job alone held it.
        self.used: bool | None = None
        #: PID -> its GPU time since the last update.
        self.process_growth: dict[int, float] = {}
        self._faults_before = dict(since.faults)
        #: For the documents of SAMS: averages and maxima of readings, and of printed metrics.
        self.gauges = {field: Gauge() for field in _GAUGES}
        self.printed_gauges: dict[str, Gauge] = {}
        #: Active and known time at the last row of the time series.
        self._row_totals = (0.0, 0.0)

    @property
    def reading(self) -> GpuReading:
        return self.meter.reading

    @property
    def time(self) -> int:
        return self.meter.time or 0

    def update(self, wall: int, now: int, own: Collection[int], foreign: Collection[int]) -> None:
        """Take what the meter has added since the last update. ``own`` are the processes of the
        job, ``foreign`` those of others, of all that have used the GPU."""
        meter, last = self.meter, self._last
        if meter.time is None or meter.time <= last.time:
            # Nothing was read: the job holds it all the same.
            self.held_time += max(0, now - max(last.time, self._held_until))
            self._held_until = max(now, self._held_until)
            return
        state = GpuState.of(meter)
        self._before = (last.time, dict(self.totals))
        self.held_time += max(0, meter.time - max(last.time, self._held_until))
        self._held_until = max(meter.time, self._held_until)
        self.last_seen = wall
        grown = {
            pid: time - last.process_time.get(pid, 0.0) for pid, time in state.process_time.items()
        }
        self.process_growth = {pid: time for pid, time in grown.items() if time > 0 and pid in own}
        share = self._share(own, foreign, grown)
        for name, value in state.totals.items():
            growth = value - last.totals.get(name, 0.0)
            known = name.startswith("known ")
            self.totals[name] = self.totals.get(name, 0.0) + growth * (1 if known else share)
        self._add_memory(own, foreign, share, max(0, meter.time - last.time))
        active = state.totals.get("active_time", 0.0) - last.totals.get("active_time", 0.0)
        if any(pid in own for pid in meter.process_memory):
            self.used = True
        elif self.used is not True and "known activity" in state.totals:
            # A process that lived between two readings leaves no trace but its activity.
            # It must be more than the rounding of a percent.
            self.used = bool(self.used) or (active > _LEAST_ACTIVITY and not foreign)
        self._last = state

    _held_until = 0

    def _share(
        self, own: Collection[int], foreign: Collection[int], grown: dict[int, float]
    ) -> float:
        """The job's share of what the GPU did since the last update."""
        if not foreign:
            return 1.0
        self.shared = True
        mine = sum(grown.get(pid, 0.0) for pid in own)
        others = sum(grown.get(pid, 0.0) for pid in foreign)
        if mine + others > 0:
            self._last_share = mine / (mine + others)
        if self._last_share is not None:
            return self._last_share
        present = [pid for pid in self.meter.process_memory if pid in own]
        return len(present) / (len(present) + len(foreign)) if present else 0.0

    _last_share: float | None = None

    def _add_memory(
        self, own: Collection[int], foreign: Collection[int], share: float, span: int
    ) -> None:
        """The memory of the GPU, or that of the job's processes if others use it; the job's share
        of it if the driver does not tell the memory of processes."""
        used = self.meter.reading.memory_used
        if foreign:
            sizes = [size for pid, size in self.meter.process_memory.items() if pid in own]
            if None not in sizes:
                used = sum(size for size in sizes if size is not None)
            elif used is not None:
                used = round(used * share)
            self.totals["memory_time"] = self._memory_time + (used or 0) * span / SECOND
        self._memory_time = self.totals.get("memory_time", 0.0)
        if used is not None:
            self.memory_peak = max(self.memory_peak or 0, used)

    _memory_time = 0.0

    def use(self) -> GpuUse:
        """The figures of the job for the batch."""
        meter, totals = self.meter, self.totals
        use = GpuUse(
            key=self.gpu.key,
            uuid=self.gpu.uuid,
            name=self.gpu.name,
            parent=self.gpu.parent,
            first_seen=self.first_seen,
            last_seen=self.last_seen,
            held_time=self.held_time,
            used=self.used,
            shared=self.shared,
            memory_total=meter.reading.memory_total,
            memory_peak=self.memory_peak,
        )
        for group, fields in GPU_FIGURES.items():
            if totals.get(f"known {group}"):
                for field in fields:
                    if field in totals:
                        setattr(use, field, round(totals[field]))
        if totals.get("known throttling"):
            use.throttled_time = {
                # A counter that was reset would add all that it had counted.
                name.removeprefix("throttled "): min(round(value), self.held_time)
                for name, value in totals.items()
                if name.startswith("throttled ") and value > 0
            }
        if "faults" not in meter.missing:
            use.faults = self._faults()
        use.coverage = self._coverage(use)
        return use

    def _faults(self) -> list[GpuFault]:
        faults = []
        for (kind, code), (count, last) in self.meter.faults.items():
            before = self._faults_before.get((kind, code), (0, 0))[0]
            if count > before:
                faults.append(GpuFault(kind=kind, code=code, count=count - before, last=last))
        return faults

    def _coverage(self, use: GpuUse) -> dict[str, Coverage]:
        """The groups that are not exact over the time that the job held the GPU."""
        coverage: dict[str, Coverage] = {}
        meter = self.meter
        for group in GPU_FIGURES:
            reason = meter.missing.get(group, "")
            known = self.totals.get(f"known {group}")
            if group == "faults":
                if reason:
                    coverage[group] = Coverage(quality="missing", reason=reason)
                continue
            if not known:
                if self.held_time or reason:
                    coverage[group] = Coverage(quality="missing", reason=reason or "not read yet")
                continue
            share = round(min(1.0, known / self.held_time), 4) if self.held_time else 1.0
            if self.shared and group != "throttling":
                reason = reason or "other jobs used the GPU at the same time"
            reason = reason or meter.estimated.get(group, "")
            if share < 0.99:
                reason = reason or "read for a part of the time"
            elif not reason:
                continue
            partial = share if share < 0.99 else None
            coverage[group] = Coverage(quality="estimate", time_share=partial, reason=reason)
        return coverage

    # For the time series and the documents of SAMS.

    def totals_at(self, time: int | None, tolerance: int) -> Totals | None:
        """The sums at the time of a row; None if the last reading is older than the tolerance.

        A GPU is read some milliseconds after the time of its row, and never after the same delay.
        At one row a second that would be a ratio of up to 107 %, so the sums of the row are
        interpolated between the last two readings.
        """
        begin, before = self._before
        end = self._last.time
        if time is not None and time - end > tolerance:
            return None
        part = 1.0
        if time is not None and end > begin:
            part = min(max(0.0, (time - begin) / (end - begin)), 2.0)
        for name, now in self.totals.items():
            start = before.get(name, 0.0)
            at = start + (now - start) * part
            self._row[name] = max(self._row.get(name, 0.0), at)
        return self._row

    def add_gauges(self) -> None:
        for field, gauge in self.gauges.items():
            gauge.add(self.time, getattr(self.reading, field))

    def mean_utilization(self) -> int | None:
        """Percent since the last call; the driver's current value if nothing was read since."""
        active = self.totals.get("active_time", 0.0)
        known = self.totals.get("known activity", 0.0)
        before, self._row_totals = self._row_totals, (active, known)
        if known > before[1]:
            return round(100 * (active - before[0]) / (known - before[1]))
        return self.reading.utilization

    def printed_average(self, name: str, printed: dict[str, Printed]) -> float | None:
        """The average of a metric that only nvidia-smi has, with its value now."""
        gauge = self.printed_gauges.setdefault(name, Gauge())
        if name in printed:
            gauge.add(self.time, parse_number(printed[name].text))
        return gauge.average

    @property
    def idle(self) -> bool:
        activity = self.reading.activity
        return self.reading.utilization == 0 if activity is None else activity == 0

    @property
    def never_used(self) -> bool:
        return self.gauges["utilization"].maximum == 0


def throttled_time(totals: Totals) -> int:
    """Nanoseconds with reduced clocks. Reasons may apply at the same time: the longest."""
    times = [time for name, time in totals.items() if name.startswith("throttled ")]
    return round(max(times, default=0))


class GpuState:
    """A copy of a meter at one time, from which a job counts on."""

    __slots__ = ("faults", "process_time", "time", "totals")

    def __init__(self) -> None:
        self.time = 0
        self.totals: Totals = {}
        self.process_time: dict[int, float] = {}
        self.faults: dict[tuple[str, int | None], tuple[int, int]] = {}

    @classmethod
    def of(cls, meter: GpuMeter) -> GpuState:
        state = cls()
        state.time = meter.time or 0
        state.totals = dict(meter.totals)
        state.process_time = dict(meter.process_time)
        state.faults = dict(meter.faults)
        return state
