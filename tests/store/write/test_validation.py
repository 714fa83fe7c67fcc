"""Batches that are refused, with nothing of them stored, and values that are left out of one."""

import math
from array import array
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as some

from jobsight.model import SECOND, Coverage, GpuFault, GpuUse, JobInfo, JobPart, JobTotals, Series
from jobsight.store.schema.tables import usage_by_day
from jobsight.store.store import Store
from jobsight.store.write import bounds
from jobsight.store.write.batch import Written
from jobsight.store.write.bounds import has_usual_figures, limit_info, limit_part
from jobsight.store.write.validation import BatchError
from tests.store.sample import (
    START,
    batch,
    find,
    info,
    part,
    series,
    sighting,
    step,
    totals,
    use,
)
from tests.store.sums import rows, sum_up_everything

DAY = 86400 * SECOND
EXACT = Coverage(quality="exact")


def bad_batches() -> dict[str, object]:
    short = Series(array("q", [START]), {"a": array("q", [1, 2])})
    return {
        "the cluster has 0 bytes": batch(cluster=""),
        "the node has 256 bytes": batch(node="n" * 256),
        r"control character '\\n'": batch(node="a\nb"),
        "sequence is -1": batch(sequence=-1),
        "sequence is 9223372036854775807": batch(sequence=2**63 - 1),
        "job id is 1000000000000000000": batch(part(sighting(job_id=10**18))),
        "between 1990 and 2200": batch(written=5),
        "creation time of job 7 on n1": batch(part(sighting(birth=START // 1000))),
        "speaks for cluster": batch(part(), cluster="c2"),
        "a of job 7 on n1 has 2 rows": batch(part(series=short)),
        "metric of job 7 on n1 has 129": batch(
            part(series=Series(array("q", [START]), {"m" * 129: array("q", [1])}))
        ),
        "time of a sample of job 7 on n1 is 0": batch(part(series=Series(array("q", [0]), {}))),
        "64-bit numbers": batch(part(series=Series(array("q", [START]), {"a": array("i", [1])}))),
        "cpu_time of job 7": batch(part(totals=totals(1, 2**63))),
        "executable of job 7 on n1 has 0 bytes": batch(part(executables=[use(b"", 1)])),
        "step of job 7 on n1 has 65 bytes": batch(part(steps=[step("s" * 65)])),
        "step of job 7 on n1 has the control": batch(part(steps=[step("1\t")])),
        "time of a step of job 7 on n1 is 17": batch(part(steps=[step("1", last_seen=17)])),
        "tasks of job 7 on n1": batch(part(steps=[step("1", tasks=2**63)])),
        "start of job 7": batch(info(start=1)),
        # 90 characters of four bytes each: three of them would not fit into an index.
        "the node has 360 bytes": batch(node="\U0001f600" * 90),
        "start of job 7 is more than 400 days": batch(info(start=START - 401 * DAY), written=START),
        "end of job 7 is more than 400 days": batch(info(end=START + 401 * DAY)),
        "creation time of job 7 on n1 is more than 400": batch(
            part(sighting(birth=START - 401 * DAY)), written=START
        ),
        "sample of job 7 on n1 is more than 400 days": batch(
            part(series=Series(array("q", [START + 401 * DAY]), {}))
        ),
        "coverage of job 7 on n1 has 65 groups": batch(
            part(coverage={f"g{number}": EXACT for number in range(65)})
        ),
        "path of an executable of job 7 on n1 has 9000": batch(
            part(executables=[use(b"/" * 9000, 1)])
        ),
    }


@pytest.mark.parametrize("words", bad_batches())
def test_a_bad_batch_is_refused_whole(words: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    bad = bad_batches()[words]
    with Store.open(tmp_path_factory.mktemp("store") / "store.db") as store:
        bad.parts.insert(0, part(sighting(8), series=series([0])))  # type: ignore[attr-defined]
        with pytest.raises(BatchError, match=words):
            store.write(bad)  # type: ignore[arg-type]
        assert store.info().runs == store.info().agents == 0


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("name", "n" * 15 * 2**20, "has 15,728,640 bytes; at most 16,384 are stored"),
        ("user", "\U0001f600" * 65, "has 260 bytes; at most 256 are stored"),
        ("account", "\0" * 65, "has 260 bytes"),
        ("partition", "\udcff" * 43, "has 258 bytes"),
        ("qos", "q" * 257, "has 257 bytes"),
        ("state", "s" * 257, "has 257 bytes"),
        ("sluid", "s" * 257, "has 257 bytes"),
        ("command", "c" * 16_385, "has 16,385 bytes; at most 16,384 are stored"),
        ("nodes", ("n1",) * 16_385, "has 16,385 entries; at most 16,384 are stored"),
        ("tres", {f"t{number}": 1 for number in range(257)}, "has 257 entries"),
        ("cpus", 2**24 + 1, "is 16777217; 0 to 16777216 are possible"),
        ("cpus", 2**64, "is 18446744073709551616"),
        ("cpus", 2**200, "is 2^128 or more"),
        ("gpus", -1, "is -1; 0 to"),
        ("memory", 2**60 + 1, "is 1152921504606846977"),
        ("time_limit", -1, "is -1"),
        ("uid", 2**32, "is 4294967296"),
        ("array_task_id", -1, "is -1"),
        ("restart_count", 2**32, "is 4294967296"),
        ("exit_code", 2**32, "is 4294967296"),
        ("exit_signal", -1, "is -1"),
    ],
    ids=lambda value: str(value)[:30] if isinstance(value, str) and value.isascii() else "",
)
def test_a_value_out_of_bounds_is_left_out_alone(
    store: Store, field: str, value: object, reason: str
) -> None:
    # Threat S-07: users choose names, so one value must not refuse the figures of a node.
    known: dict[str, Any] = {"name": "short", "cpus": 2, "user": "anna"}
    sent = batch(info(**(known | {field: value})), part(totals=totals(1, 5)))
    (written,) = store.write_all([sent])
    assert isinstance(written, Written)
    assert written.new
    (sentence,) = written.left_out
    assert sentence.startswith(f"{field} of job 7 {reason}")
    assert len(sentence) < 200
    stored = find(store)
    assert getattr(stored.info, field) is None
    assert {name: getattr(stored.info, name) for name in known if name != field} == {
        name: value for name, value in known.items() if name != field
    }
    assert stored.cpu_time == 5


def test_the_longest_names_fit_every_index(store: Store) -> None:
    wide = "\U0001f600" * 63
    record = info(user=wide, account=wide, partition=wide, qos=wide, end=START + SECOND, cpus=1)
    record.cluster = wide
    seen = msgspec.structs.replace(sighting(node=wide), cluster=wide, boot_id=wide)
    assert store.write(batch(record, part(seen, totals=totals(1, 5)), cluster=wide, node=wide))
    sum_up_everything(store)
    assert len(rows(store, usage_by_day)) == 1


@pytest.mark.parametrize("share", [math.nan, math.inf, -math.inf, -0.5, 1.5])
@pytest.mark.parametrize("name", ["time_share", "cpu_share"])
def test_a_coverage_with_an_impossible_share_is_left_out(
    store: Store, name: str, share: float
) -> None:
    # Threat S-11.
    bad = msgspec.structs.replace(EXACT, **{name: share})
    (written,) = store.write_all([batch(part(coverage={"cpu": bad, "memory": EXACT}))])
    assert isinstance(written, Written)
    assert "coverage cpu of job 7 on n1 has the shares" in written.left_out[0]
    (node,) = store.nodes(find(store).id)
    assert node.coverage == {"memory": EXACT}


def test_impossible_figures_are_left_out_by_row(store: Store) -> None:
    long = Coverage(quality="failed", reason="r" * 5000)
    sent = part(
        totals=totals(1, -5, memory_peak=7),
        executables=[use(b"/a", -1), use(b"/b", 3), use(b"/c", 3, failures=2**44)],
        steps=[step("0", cpu_time=-1), step("1", cpu_time=4)],
        coverage={"cpu": long, "io": Coverage(quality="exact", events_lost=-1)},
    )
    (written,) = store.write_all([batch(sent)])
    assert isinstance(written, Written)
    assert len(written.left_out) == 5
    run = find(store)
    (node,) = store.nodes(run.id)
    assert node.totals is not None
    assert (node.totals.cpu_time, node.totals.memory_peak) == (None, 7)
    assert list(node.coverage) == ["cpu"]
    assert len(node.coverage["cpu"].reason) == 1024
    assert [row.use.path for row in store.executables(run.id)] == [b"/b"]
    assert [row.use.step for row in store.steps(run.id)] == ["1"]


@pytest.mark.parametrize(
    "changes",
    [
        {"key": ""},
        {"key": "k" * 65},
        {"key": "a\nb"},
        {"parent": "\0"},
        {"name": "\U0001f600" * 33},
        {"uuid": "\ud800"},
        {"held_time": -1},
        {"energy": 2**63},
        {"memory_time": -1},
        {"throttled_time": {"power": -1}},
        {"throttled_time": {str(number): 1 for number in range(33)}},
        {"faults": [GpuFault(kind="xid", count=-1, last=START)]},
        {"faults": [GpuFault(kind="xid", count=1, last=START, code=2**32)]},
        {"faults": [GpuFault(kind="xid", count=1, last=START)] * 33},
        {"coverage": {"x" * 65: EXACT}},
    ],
    ids=str,
)
def test_an_impossible_gpu_is_left_out_alone(changes: dict[str, Any]) -> None:
    usual = GpuUse(key="0", uuid="GPU-1", name="NVIDIA H200", held_time=5, used=True)
    bad = msgspec.structs.replace(usual, key="1")
    sent = part(gpus=[usual, msgspec.structs.replace(bad, **changes)])
    (excess,) = limit_part(sent)
    assert excess == ("gpus", "have 1 rows with impossible figures")
    assert sent.gpus == [usual]


def test_gpus_of_a_part_are_bounded_and_each_is_there_once() -> None:
    sent = part(gpus=[GpuUse(key=str(number)) for number in range(300)])
    assert limit_part(sent) == [("gpus", "have 300 rows; at most 256 are stored")]
    assert len(sent.gpus) == 256
    twice = part(gpus=[GpuUse(key="0", held_time=1), GpuUse(key="0", held_time=2)])
    assert len(limit_part(twice)) == 1
    assert [use.held_time for use in twice.gpus] == [1]
    share = Coverage(quality="exact", time_share=2.0)
    bad = part(gpus=[GpuUse(key="0", coverage={"energy": share, "memory": EXACT})])
    (excess,) = limit_part(bad)
    assert excess.field == "GPU 0: coverage energy"
    assert bad.gpus[0].coverage == {"memory": EXACT}


_numbers = some.one_of(some.none(), some.integers(-(2**70), 2**70))
_texts = some.one_of(some.none(), some.text(max_size=20), some.just("\ud800" * 5000))


@given(
    some.fixed_dictionaries(
        {
            name: _numbers if "int" in kind else _texts
            for name, kind in JobInfo.__annotations__.items()
            if kind in ("int | None", "str | None") and name not in ("submit", "start", "end")
        }
    )
)
def test_limits_hold_and_change_nothing_else(values: dict[str, Any]) -> None:
    record = JobInfo(cluster="c1", job_id=7, source="cgroup", **values)
    limited, excesses = limit_info(record)
    assert limit_info(limited) == (limited, [])
    left_out = {excess.field for excess in excesses}
    for name in JobInfo.__struct_fields__:
        expected = None if name in left_out else getattr(record, name)
        assert getattr(limited, name) == expected


@given(some.floats() | some.none(), some.integers(-5, 2**64), _numbers)
def test_a_limited_part_has_no_limits_left(
    share: float | None, lost: int, figure: int | None
) -> None:
    sent = JobPart(
        sighting=sighting(),
        epoch="e",
        totals=JobTotals(time=START, cpu_source="cgroup v2", cpu_time=figure),
        executables=[use(b"/a", figure or 0)],
        coverage={"cpu": Coverage(quality="exact", time_share=share, events_lost=lost)},
    )
    # What is called usual needs no closer look.
    usual = has_usual_figures(sent)
    assert (limit_part(sent) == []) or not usual
    assert limit_part(sent) == []


@pytest.mark.parametrize("field", bounds._INFO)
@given(data=some.data())
def test_a_usual_record_is_within_every_bound(field: str, data: some.DataObject) -> None:
    bound = bounds._INFO[field]
    values: some.SearchStrategy[object]
    if isinstance(bound, bounds._Number):
        near = [bound.least, bound.most, 2**16, 2**31, 2**32, 2**63]
        values = some.sampled_from([near_by + step for near_by in near for step in (-1, 0, 1)])
    elif isinstance(bound, bounds._Text):
        longest = [bound.longest, bound.longest // 6, bound.longest // 4]
        texts = [
            letter * (size + step)
            for letter in "a\0\ud800\U0001f600"
            for size in longest
            for step in (-1, 0, 1)
        ]
        values = some.sampled_from(texts)
    else:
        sizes = [(64, 1), (65, 1), (16_384, 1), (64, 5000), (1, 2**18), (1, 2**18 + 1), (257, 1)]
        items = [tuple(f"{number:0{width}}" for number in range(many)) for many, width in sizes]
        values = some.sampled_from(items)
        if field == "tres":
            values = values.map(lambda names: dict.fromkeys(names, 1))  # type: ignore[call-overload]
    record = info(**{field: data.draw(values)})
    excess = bound.reason(getattr(record, field))
    assert excess is None or not bounds._is_usual(record)
    assert [each.field for each in limit_info(record)[1]] == ([] if excess is None else [field])
