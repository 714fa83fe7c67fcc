"""The table of names: complete, unambiguous, and to promtool's liking."""

from collections import Counter

from jobsight.metrics import METRICS
from jobsight.prometheus import names
from jobsight.prometheus.exposition import document, line
from tests.prometheus.servers import promtool


def text_of(table: dict[str, names.Family]) -> bytes:
    """One sample of every name, with labels."""
    lines = {
        family.name: [line(family.name, dict.fromkeys(family.labels or ("node",), "x"), 1)]
        for family in table.values()
    }
    return document(table.values(), lines).encode()


def test_every_metric_has_a_name_of_its_own() -> None:
    assert set(names.OF_METRIC) == set(METRICS)
    everything = [*names.OWN.values(), *names.PETRICORE.values(), *names.AGENT.values()]
    twice = [name for name, count in Counter(one.name for one in everything).items() if count > 1]
    assert twice == []


def test_promtool_likes_our_names() -> None:
    for table in (names.OWN, names.AGENT, names.SERVER, names.CLUSTER_GPUS):
        checked = promtool("check", "metrics", text=text_of(table))
        assert (checked.returncode, checked.stderr) == (0, "")


def test_promtool_dislikes_only_the_unit_in_two_of_petricore_s() -> None:
    checked = promtool("check", "metrics", text=text_of(names.PETRICORE))
    dislikes = {row.split()[0] for row in checked.stderr.splitlines()}
    assert dislikes == {"jobs_read_mb", "jobs_write_mb"}
    assert checked.stderr.count("abbreviated units") == 2


def test_a_thing_in_a_metric_s_name_becomes_a_label() -> None:
    found = names.family_of("gpu.0:1.power")
    assert found is not None
    family, thing = found
    assert (family.name, family.labels, thing) == ("jobsight_job_gpu_power_watts", ("gpu",), "0:1")
    assert family.divisor == 1_000_000
    assert names.family_of("cpu.time") == (names.OF_METRIC["cpu.time"], None)
    assert names.OF_METRIC["cpu.time"].name == "jobsight_job_cpu_seconds_total"
    assert names.family_of("site.own") is None
