"""The mapping language: what matches, what is filled in, and what is refused at the start."""

from typing import Any

import pytest

from jobsight.agent.job import JobView
from jobsight.agent.outputs.carbon import clean_name
from jobsight.agent.outputs.mapping import Mapper, MappingOptions, as_number, fill
from jobsight.agent.outputs.templates import Exposition, ExpositionOptions, parse_series
from jobsight.errors import ConfigError
from tests.agent.outputs.conftest import HOSTILE

CGROUP = "sams.sampler.SlurmCGroup"


def mapper(metrics: dict[str, str], **more: Any) -> Mapper:
    return Mapper(MappingOptions(metrics=metrics, **more))


@pytest.mark.parametrize(
    "expression",
    [
        r"^sams.sampler.SlurmCGroup/(?P<metric>\S+)",
        r"^/sams.sampler.SlurmCGroup/(?P<metric>\S+)",
        r"/sams.sampler.SlurmCGroup/(?P<metric>\S+)",
        r"sams\.sampler\.SlurmCGroup/(?P<metric>.*)$",
    ],
)
def test_expressions_match_with_and_without_the_slash(view: JobView, expression: str) -> None:
    found = mapper({expression: "x.%(metric)s"}).values(view, CGROUP, {"memory": {"usage": "12"}})
    assert [(fill(v.template, v.fields, str), v.number) for v in found] == [("x.memory/usage", 12)]


def test_where_values_come_from(view: JobView) -> None:
    rules = mapper(
        {"^sams.sampler.X/(?P<field>.*)": "%(cluster)s.%(project)s.%(jobid)d.%(node)s.%(field)s"},
        map={"project": "sams.sampler.SlurmInfo/account"},
        static_map={"cluster": "kebne"},
    )
    assert rules.values(view, "sams.sampler.X", {"v": 0}) == []
    assert rules.not_known == 1
    rules.values(view, "sams.sampler.SlurmInfo", {"account": "p1"})
    (value,) = rules.values(view, "sams.sampler.X", {"v": 0})
    assert fill(value.template, value.fields, str) == "kebne.p1.1234.n1.v"
    assert value.number == 0


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (0, 0),
        (0.0, 0.0),
        ("0", 0),
        (" 12 ", 12),
        ("-1.5e3", -1500.0),
        (True, 1),
        ("max", None),
        ("[N/A]", None),
        ("nan", None),
        ("inf", None),
        ("1_000", None),
        ("", None),
        ("0x10", None),
        (float("nan"), None),
        (float("inf"), None),
        (None, None),
        ([1], None),
    ],
)
def test_numbers(value: Any, number: Any) -> None:
    assert as_number(value) == number


def test_words_are_dropped_and_counted(view: JobView) -> None:
    rules = mapper({".*": "x"})
    assert [v.number for v in rules.values(view, CGROUP, {"a": "max", "b": 0})] == [0]
    assert rules.not_numeric == 1


@pytest.mark.parametrize(
    ("metrics", "more", "sentence"),
    [
        ({"(": "x"}, {}, r"metrics\.\(: is not a regular expression"),
        ({"x": "%(nosuch)s"}, {}, r"%\(nosuch\)s in .* is not known; expected jobid, node"),
        ({"(?P<g>x)": "%(g)d"}, {}, None),
        ({"x": "100%"}, {}, "has a % at character 4 that starts no placeholder"),
        ({"x": "%s"}, {}, "has a % at character 1 that starts no placeholder"),
        ({"x": "%(m)s"}, {"map": {"m": ""}}, r"map\.m: is empty; expected sampler/field"),
        ({"x": "%(m)s %%"}, {"map": {"m": "a/b"}}, None),
    ],
)
def test_templates_are_checked_at_the_start(
    metrics: dict[str, str], more: dict[str, Any], sentence: str | None
) -> None:
    if sentence is None:
        mapper(metrics, **more)
        return
    with pytest.raises(ConfigError, match=sentence):
        mapper(metrics, **more)


def exposition(template: str, **more: Any) -> Exposition:
    return Exposition(ExpositionOptions(metrics={r"^sams.x/(?P<metric>.*)": template}, **more))


@pytest.mark.parametrize(
    ("template", "sentence"),
    [
        ("9x{}", "'9x' is not the name of a Prometheus metric"),
        ('x{a="b"', "does not end with a brace"),
        ("x{a=b}", "no label can be read at 'a=b'"),
        ('x{a="b" c="d"}', "no label can be read"),
        ('x{a="b",a="c"}', "the label a is given twice"),
    ],
)
def test_series_are_checked_at_the_start(template: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        exposition(template)


def test_a_template_taken_apart() -> None:
    parsed = parse_series("x", ' sa_metric{ cluster = "%(c)s", q="a\\"b,}" , } ')
    assert parsed == ("sa_metric", (("cluster", "%(c)s"), ("q", 'a\\"b,}')))


@pytest.mark.parametrize("text", HOSTILE)
def test_prometheus_reads_hostile_labels(view: JobView, text: str) -> None:
    parser = pytest.importorskip("prometheus_client.parser")
    series = exposition('sa{metric="%(metric)s",c="%(c)s"}', static_map={"c": text})
    series.update(view, "sams.x", {text.replace("\n", " "): 0, "plain": 1.5})
    (family,) = parser.text_string_to_metric_families(series.text())
    assert family.type == "gauge"
    assert sorted(sample.value for sample in family.samples) == [0, 1.5]
    plain = text.encode("utf-8", "surrogatepass").decode("utf-8", "backslashreplace")
    assert {sample.labels["c"] for sample in family.samples} == {plain}


def test_a_series_goes_when_its_source_does(view: JobView) -> None:
    series = exposition('sa{m="%(metric)s"}')
    assert series.update(view, "sams.x", {"gpu0": 1, "gpu1": 2})
    assert series.update(view, "sams.x", {"gpu1": 3})
    assert series.text().splitlines()[2:] == ['sa{m="gpu1"} 3']
    assert not series.update(view, "other", {"y": 1})


@pytest.mark.parametrize("text", HOSTILE)
def test_graphite_names_stay_one_word(text: str) -> None:
    cleaned = clean_name(text)
    assert cleaned.isascii()
    assert not set(cleaned) & set(" \t\n/\x00;")


# Fault 17: series with %(account)s never appeared if the account came after the sample.
def test_a_sample_is_mapped_again_when_its_labels_become_known(view: JobView) -> None:
    exposition = Exposition(
        ExpositionOptions(
            metrics={f"^{CGROUP}/(?P<metric>.*)": 'x{account="%(account)s", m="%(metric)s"}'},
            map={"account": "sams.sampler.SlurmInfo/account"},
        )
    )
    assert not exposition.update(view, CGROUP, {"memory_usage": 5})
    assert not exposition.update(view, "sams.sampler.SlurmInfo", {"uid": "1001"})
    assert exposition.update(view, "sams.sampler.SlurmInfo", {"uid": "1001", "account": "p1"})
    assert 'x{account="p1",m="memory_usage"} 5' in exposition.text()
    # Nothing waits any more, so the next document of SlurmInfo repeats nothing.
    again = exposition.mapper.by_sampler(view, "sams.sampler.SlurmInfo", {"account": "p1"})
    assert list(again) == ["sams.sampler.SlurmInfo"]
