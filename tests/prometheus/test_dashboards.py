"""Dashboards and rules: fresh, of names that exist, and answered by a real Prometheus."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from deploy.grafana.generate import HERE, dashboards
from deploy.grafana.rendering import Dashboard, render
from jobsight.agent.exporter import profile_plugin
from jobsight.agent.exporter.exporter import AgentMetrics, Exporter
from jobsight.agent.exporter.http import Endpoint
from jobsight.config.settings import MetricsSettings
from jobsight.metrics import METRICS
from jobsight.model import JobInfo
from jobsight.prometheus import names
from jobsight.prometheus.exposition import line
from jobsight.scheduler.cluster_metrics import FAMILIES
from tests.agent.samplers.jobs import Job
from tests.prometheus.servers import Prometheus, promtool, scraping, wait_for

DEPLOY = HERE.parent / "prometheus"
PLUGIN = {each.name: each for each in (profile_plugin.DROPPED, profile_plugin.REFUSED)}
KNOWN = {**names.OWN, **names.PETRICORE, **names.AGENT, **names.SERVER, **FAMILIES, **PLUGIN}


def expressions(dashboard: Dashboard) -> list[str]:
    return [target.expression for panel in dashboard.panels for target in panel.targets]


def rules() -> list[dict[str, str]]:
    groups = yaml.safe_load((DEPLOY / "jobsight-rules.yml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


@pytest.mark.parametrize("dashboard", dashboards(), ids=lambda one: one.name)
def test_a_dashboard_is_what_the_table_gives(dashboard: Dashboard) -> None:
    text = (HERE / f"{dashboard.name}.json").read_text()
    assert text == render(dashboard), "type `python -m deploy.grafana.generate`"
    made = json.loads(text)
    places = [tuple(panel["gridPos"].values()) for panel in made["panels"]]
    assert len(set(places)) == len(places)


def test_rules_and_dashboards_name_what_exists() -> None:
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    asked = [rule["expr"] for rule in rules()]
    asked += [one for dashboard in dashboards() for one in expressions(dashboard)]
    found = {word for text in asked for word in re.findall(r"[\w:]*jobs(?:ight)?_[\w:]+", text)}
    assert found - KNOWN.keys() - recorded == set()
    assert len(found) > 30


def test_promtool_finds_nothing_wrong(tmp_path: Path) -> None:
    checked = promtool("check", "rules", str(DEPLOY / "jobsight-rules.yml"))
    assert (checked.returncode, checked.stderr) == (0, "")
    shutil.copy(DEPLOY / "jobsight-rules.yml", tmp_path)
    (tmp_path / "token").write_text("x")
    text = (DEPLOY / "prometheus.yml").read_text()
    assert "/etc/prometheus/jobsight-token" in text
    config = tmp_path / "prometheus.yml"
    config.write_text(text.replace("/etc/prometheus/jobsight-token", str(tmp_path / "token")))
    checked = promtool("check", "config", str(config))
    assert checked.returncode == 0, checked.stderr


#: Two hours of a job that sleeps on 4 CPUs and of one that works on 2, and an agent that drops.
RULES = """
rule_files: [{rules}]
evaluation_interval: 1m
tests:
  - interval: 1m
    input_series:
      - {{series: 'jobsight_job_cpu_seconds_total{{cluster="c",node="n",slurm_job="1"}}', values: '0+1x120'}}
      - {{series: 'jobsight_job_requested_cpus{{cluster="c",node="n",slurm_job="1"}}', values: '4x120'}}
      - {{series: 'jobsight_job_info{{cluster="c",node="n",slurm_job="1",user="ann"}}', values: '1x120'}}
      - {{series: 'jobsight_job_cpu_seconds_total{{cluster="c",node="n",slurm_job="2"}}', values: '0+120x120'}}
      - {{series: 'jobsight_job_requested_cpus{{cluster="c",node="n",slurm_job="2"}}', values: '2x120'}}
      - {{series: 'jobsight_job_info{{cluster="c",node="n",slurm_job="2",user="bob"}}', values: '1x120'}}
      - {{series: 'jobsight_agent_spool_dropped_total{{cluster="c",node="n"}}', values: '0x60 1x60'}}
    promql_expr_test:
      - expr: cluster_user:jobsight_job_cpu_cores:rate5m
        eval_time: 30m
        exp_samples:
          - {{labels: 'cluster_user:jobsight_job_cpu_cores:rate5m{{cluster="c",user="bob"}}', value: 2}}
          - {{labels: 'cluster_user:jobsight_job_cpu_cores:rate5m{{cluster="c",user="ann"}}', value: 0.016666666666666666}}
    alert_rule_test:
      - {{alertname: JobsightBatchesDropped, eval_time: 50m}}
      - alertname: JobsightBatchesDropped
        eval_time: 70m
        exp_alerts: [{{exp_labels: {{cluster: c, node: n, severity: critical}}, exp_annotations: {{summary: "n has dropped batches: its spool is full or its disk fails", description: "Data is lost. Make the server reachable from the node (`jobsight doctor` there says what fails), or raise `agent.spool_limit`."}}}}]
      - alertname: JobsightJobIdle
        eval_time: 100m
        exp_alerts: [{{exp_labels: {{cluster: c, slurm_job: "1", severity: info}}, exp_annotations: {{summary: "Job 1 has used almost none of its CPUs for an hour"}}}}]
"""  # noqa: E501


def test_rules_say_what_they_should(tmp_path: Path) -> None:
    file = tmp_path / "test.yml"
    file.write_text(RULES.format(rules=DEPLOY / "jobsight-rules.yml"))
    checked = promtool("test", "rules", str(file))
    assert checked.returncode == 0, checked.stdout + checked.stderr


STATUS = {
    "cluster": "c",
    "node": "n1",
    "sampler_errors": {},
    "faults": {"x": 1},
    **dict.fromkeys(
        ("jobs", "processes", "rounds", "round_cpu_nanoseconds", "cpu_nanoseconds", "events"), 1
    ),
    **dict.fromkeys(
        ("event_overruns", "spool_batches", "spool_bytes", "spool_dropped", "spool_refused"), 1
    ),
}


def server_metrics() -> list[tuple[names.Family, str]]:
    """What the server exposes, at the same address as the agent's."""
    labels = {"cluster": "c", "partition": "p"}
    lines = [(family, line(family.name, labels, 1)) for family in names.CLUSTER_GPUS.values()]
    for family in names.SERVER.values():
        values = dict.fromkeys(family.labels, "x") | {"cluster": "c"}
        lines.append((family, line(family.name, values, 1)))
    for name in ("jobsight_scrape_age_seconds", "jobsight_dead_letters"):
        lines.append((names.Family(name, "gauge", FAMILIES[name]), line(name, {"cluster": "c"}, 1)))
    return lines


@pytest.fixture
def prometheus(tmp_path: Path, job: Job) -> Iterator[Prometheus]:
    """A Prometheus that reads an exporter with one job of which everything is known."""
    exporter = Exporter()
    job.view.info = JobInfo(
        cluster="c", job_id=42, source="prolog", user="ann", account="a", partition="p",
        name="x", cpus=4, memory=2**30,
    )  # fmt: skip
    sampler = exporter.plans([])[-1].make(job.view)
    job.process(1, b"/usr/bin/app", threads=3)
    job.view.row = {name.replace("*", "0"): 10**9 for name in METRICS}
    sampler.columns(job.view)
    own = AgentMetrics(exporter, lambda: STATUS)
    exporter.sources.append(own)
    own.refresh()
    exporter.sources.append(server_metrics)
    endpoint = Endpoint(exporter, MetricsSettings(listen="127.0.0.1:0"))
    endpoint.open()
    endpoint.start()
    config = scraping(endpoint.port, rules=str(DEPLOY / "jobsight-rules.yml"))
    server = Prometheus(tmp_path / "prometheus", config)
    try:
        yield server
    finally:
        server.stop()
        endpoint.close()


def test_every_expression_returns_data(prometheus: Prometheus) -> None:
    filled = {"$cluster": "c", "$job": "42", "$user": "ann", "$node": "n1"}
    wait_for(lambda: prometheus.query("rate(jobsight_job_cpu_seconds_total[5s])"), 60)
    for dashboard in dashboards():
        for expression in expressions(dashboard):
            text = expression.replace("$__rate_interval", "30s")
            for name, value in filled.items():
                text = text.replace(name, value)
            assert prometheus.query(text), (dashboard.name, text)
    recorded = [rule["record"] for rule in rules() if "record" in rule]
    for name in recorded:
        wait_for(lambda name=name: prometheus.query(name), 60)
    groups = prometheus.get("/api/v1/rules")["data"]["groups"]
    wrong = [rule["name"] for group in groups for rule in group["rules"] if rule.get("lastError")]
    assert wrong == []
