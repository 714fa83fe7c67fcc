"""Batches that are refused: each with a sentence, and nothing of it stored."""

from array import array

import pytest

from jobsight.model import Series
from jobsight.store.store import Store
from jobsight.store.write.validation import BatchError
from tests.store.sample import START, batch, info, part, series, sighting, step, totals, use


def bad_batches() -> dict[str, object]:
    short = Series(array("q", [START]), {"a": array("q", [1, 2])})
    return {
        "the cluster has 0 characters": batch(cluster=""),
        "the node has 256 characters": batch(node="n" * 256),
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
        "step of job 7 on n1 has 65 characters": batch(part(steps=[step("s" * 65)])),
        "step of job 7 on n1 has the control": batch(part(steps=[step("1\t")])),
        "time of a step of job 7 on n1 is 17": batch(part(steps=[step("1", last_seen=17)])),
        "tasks of job 7 on n1": batch(part(steps=[step("1", tasks=2**63)])),
        "cpus of job 7": batch(info(cpus=2**64)),
        "start of job 7": batch(info(start=1)),
    }


@pytest.mark.parametrize("words", bad_batches())
def test_a_bad_batch_is_refused_whole(words: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    bad = bad_batches()[words]
    with Store.open(tmp_path_factory.mktemp("store") / "store.db") as store:
        bad.parts.insert(0, part(sighting(8), series=series([0])))  # type: ignore[attr-defined]
        with pytest.raises(BatchError, match=words):
            store.write(bad)  # type: ignore[arg-type]
        assert store.info().runs == store.info().agents == 0
