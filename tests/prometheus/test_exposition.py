"""The text, read back by the parsers that Prometheus's own client has."""

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_parser
from prometheus_client.parser import text_string_to_metric_families as plain_parser

from jobsight.prometheus import names
from jobsight.prometheus.exposition import document, line

#: Any text that can be a label; a lone half of a pair is what a name of no UTF-8 becomes.
TEXTS = st.text(st.characters(exclude_categories=("Cs",)), max_size=40)


def text(value: str, *, openmetrics: bool) -> str:
    info, cpu = names.INFO, names.OF_METRIC["cpu.time"]
    calls = names.PETRICORE["jobs_read_count"]
    lines = {
        info.name: [line(info.name, {"node": "n1", "name": value}, 1)],
        cpu.name: [line(cpu.name, {"node": value}, 2.5), line(cpu.name, {"node": value + "x"}, 3)],
        calls.name: [line(calls.name, {"instance": value}, 7)],
    }
    families = [*names.OWN.values(), *names.PETRICORE.values()]
    return document(families, lines, openmetrics=openmetrics)


@given(TEXTS)
def test_any_label_comes_back_in_both_formats(value: str) -> None:
    for parser, openmetrics in ((plain_parser, False), (open_parser, True)):
        found = {
            sample.name: sample
            for family in parser(text(value, openmetrics=openmetrics))
            for sample in family.samples
        }
        assert found["jobsight_job_info"].labels == {"node": "n1", "name": value}
        assert found["jobs_read_count"].labels == {"instance": value}
        assert found["jobsight_job_cpu_seconds_total"].value == 3


def test_bytes_that_are_no_text_are_written_out() -> None:
    written = text("a\udcffb", openmetrics=False)
    assert r'name="a\\xed\\xb3\\xbfb"' in written
    written.encode()


def test_openmetrics_types_and_end() -> None:
    written = text("v", openmetrics=True)
    types = dict(row.split()[2:4] for row in written.splitlines() if row.startswith("# TYPE"))
    assert types == {
        "jobsight_job": "info",
        "jobsight_job_cpu_seconds": "counter",
        "jobs_read_count": "unknown",
    }
    assert written.endswith("# EOF\n")


def test_a_family_without_samples_is_left_out() -> None:
    assert document(names.OWN.values(), {}) == ""
