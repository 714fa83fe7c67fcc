"""Every alert fires for what it is about and stays quiet otherwise, as promtool evaluates it."""

from __future__ import annotations

import importlib
import re
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from jobsight.agent.exporter import profile_plugin
from jobsight.cli.main import COMMANDS
from jobsight.prometheus import names
from tests.prometheus.servers import promtool

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy" / "prometheus" / "jobsight-rules.yml"


class Case(NamedTuple):
    """Series for which an alert fires, and for which it does not."""

    fires: dict[str, str]
    quiet: dict[str, str]
    #: Minutes after which both are evaluated; series have one value a minute.
    at: int = 60


AGENT = '{cluster="c",node="n"}'
OUTPUT = '{cluster="c",node="n",output="http"}'
CLUSTER = '{cluster="c"}'


def above(series: str, low: object, high: object, at: int = 60) -> Case:
    """A gauge that is too high, or not."""
    return Case({series: f"{high}x{2 * at}"}, {series: f"{low}x{2 * at}"}, at)


def grows(series: str) -> Case:
    """A counter that has grown within the hour, or long ago."""
    return Case({series: "0x50 3x70"}, {series: "3x120"}, 60)


def worker(name: str, suffix: str) -> str:
    return f'jobsight_server_worker_{suffix}{{worker="{name}"}}'


RUNNING = 'slurm_job_states{name="running",instance="s"}'
BATCH_AGE = 'jobsight_server_batch_age_seconds{instance="s"}'

CASES = {
    "JobsightAgentUnreachable": above('up{job="jobsight",instance="n:9306"}', 1, 0),
    "JobsightAgentStalled": Case(
        {f"jobsight_agent_rounds_total{AGENT}": "5x120", f"jobsight_agent_jobs{AGENT}": "1x120"},
        {f"jobsight_agent_rounds_total{AGENT}": "5x120", f"jobsight_agent_jobs{AGENT}": "0x120"},
    ),
    "JobsightBatchesDropped": grows(f"jobsight_agent_spool_dropped_total{AGENT}"),
    "JobsightServerUnreachable": above(f"jobsight_agent_spool_batches{AGENT}", 100, 101),
    "JobsightBatchesRefused": grows(f"jobsight_agent_spool_refused_total{AGENT}"),
    "JobsightEventsUnavailable": above(f"jobsight_agent_events{AGENT}", 1, 0),
    "JobsightEventsLost": grows(f"jobsight_agent_event_overruns_total{AGENT}"),
    "JobsightSamplerErrors": above(f"jobsight_agent_sampler_errors{AGENT}", 0, 1),
    "JobsightAgentFaults": grows(f"jobsight_agent_faults_total{AGENT}"),
    "JobsightAgentMemory": above(f"jobsight_agent_resident_memory_bytes{AGENT}", 3e7, 3e8),
    "JobsightSeriesLeftOut": above(f"jobsight_agent_series_left_out{AGENT}", 0, 4),
    "JobsightPushFails": Case(
        {f"jobsight_agent_push_failures_total{AGENT}": "0+1x120"},
        {f"jobsight_agent_push_failures_total{AGENT}": "0x50 3x70"},
    ),
    "JobsightAgentRemoteWriteDropped": grows(f"jobsight_agent_remote_write_dropped_total{AGENT}"),
    "JobsightOutputLosesRecords": grows(f"jobsight_agent_output_lost_records_total{OUTPUT}"),
    "JobsightOutputRecordsRefused": grows(f"jobsight_agent_output_refused_records_total{OUTPUT}"),
    "JobsightOutputLosesSamples": grows(f"jobsight_agent_output_lost_samples_total{OUTPUT}"),
    "JobsightProfileSamplesDropped": above(f"jobsight_profile_dropped_samples_total{AGENT}", 0, 5),
    "JobsightProfileSamplesRefused": grows(f"jobsight_profile_refused_datagrams_total{AGENT}"),
    "JobsightVersionsDiffer": Case(
        {f'jobsight_agent_info{{node="n{n}",version="0.{n}"}}': "1x400" for n in (1, 2, 3)},
        {f'jobsight_agent_info{{node="n{n}",version="0.{n}"}}': "1x400" for n in (1, 2)},
        390,
    ),
    "JobsightServerDown": above('up{job="jobsight-server",instance="s"}', 1, 0),
    "JobsightServerRestarts": Case(
        {"jobsight_server_start_time_seconds": "1x5 2x5 3x5 4x5 5x100"},
        {"jobsight_server_start_time_seconds": "1x5 2x115"},
        50,
    ),
    "JobsightBatchesFail": Case(
        {'jobsight_server_batches_total{status="failed"}': "0+1x120"},
        {
            'jobsight_server_batches_total{status="failed"}': "3x120",
            'jobsight_server_batches_total{status="stored"}': "0+9x120",
        },
    ),
    "JobsightServerRefusesBatches": grows('jobsight_server_batches_total{status="refused"}'),
    "JobsightNoBatches": Case(
        {BATCH_AGE: "0+60x120", RUNNING: "4x120"},
        # Nothing runs, so nothing has to be sent.
        {BATCH_AGE: "0+60x120", RUNNING: "0x120"},
    ),
    "JobsightAgentsSilent": above(f"jobsight_server_agents_silent{CLUSTER}", 0, 2),
    "JobsightClockSkew": above(f"jobsight_server_agents_clock_skew_seconds{CLUSTER}", 2, 9),
    "JobsightWorkerUnhealthy": above(worker("archive", "healthy"), 1, 0),
    "JobsightWorkerSilent": Case(
        {worker("findings", "success_age_seconds"): "0+60x240"},
        {worker("archive", "success_age_seconds"): "0+60x240"},
        200,
    ),
    "JobsightArchiveSilent": above(worker("archive", "success_age_seconds"), 86400, 777600),
    "JobsightScrapeFails": above(f"jobsight_scrape_success{CLUSTER}", 1, 0),
    "JobsightScrapeSilent": above(f"jobsight_scrape_age_seconds{CLUSTER}", 60, 4000),
    "JobsightSinkUnhealthy": above('jobsight_server_sink_healthy{sink="mongodb"}', 1, 0),
    "JobsightDeadLetters": above('jobsight_dead_letters{cluster="c",kind="rollup"}', 0, 1),
    "JobsightRowsLeftOut": Case(
        {f"jobsight_left_out{CLUSTER}": "5x50 7x70"}, {f"jobsight_left_out{CLUSTER}": "7x120"}
    ),
    "JobsightValuesLeftOut": grows("jobsight_server_values_left_out_total"),
    "JobsightDiskNearlyFull": above("jobsight_server_disk_free_bytes", 5e10, 1e9),
    "JobsightDiskFills": Case(
        {"jobsight_server_disk_free_bytes": "50000000000-50000000x600"},
        {"jobsight_server_disk_free_bytes": "50000000000-1000x600"},
        500,
    ),
    "JobsightCertificateEnds": above(
        "jobsight_server_certificate_end_time_seconds", 30 * 86400, 7 * 86400
    ),
    "JobsightMailsRejected": Case(
        {'jobsight_server_mails_total{status="rejected"}': "0x50 3x70"},
        {
            'jobsight_server_mails_total{status="rejected"}': "3x120",
            'jobsight_server_mails_total{status="sent"}': "0+9x120",
        },
    ),
    "JobsightMailQueueFills": above("jobsight_server_mail_queue", 9999, 10001),
    "JobsightRemoteWriteLost": grows("jobsight_server_remote_write_lost_total"),
    "JobsightRemoteWriteDropped": grows("jobsight_server_remote_write_dropped_total"),
    "JobsightRemoteWriteBehind": above("jobsight_server_remote_write_batches", 10, 1001),
    "JobsightJobNearItsMemory": Case(
        {
            'jobsight_job_memory_used_bytes{cluster="c",slurm_job="1"}': "97x120",
            'jobsight_job_requested_memory_bytes{cluster="c",slurm_job="1"}': "100x120",
        },
        {
            'jobsight_job_memory_used_bytes{cluster="c",slurm_job="1"}': "90x120",
            'jobsight_job_requested_memory_bytes{cluster="c",slurm_job="1"}': "100x120",
        },
    ),
    "JobsightJobIdle": Case(
        {
            'jobsight_job_cpu_seconds_total{cluster="c",slurm_job="1"}': "0+1x120",
            'jobsight_job_requested_cpus{cluster="c",slurm_job="1"}': "4x120",
        },
        {
            'jobsight_job_cpu_seconds_total{cluster="c",slurm_job="1"}': "0+60x120",
            'jobsight_job_requested_cpus{cluster="c",slurm_job="1"}': "4x120",
        },
        100,
    ),
    "JobsightGpusIdle": Case(
        {
            'jobsight_job_gpu_idle{cluster="c",slurm_job="1"}': "2x120",
            'jobsight_job_gpu_held{cluster="c",slurm_job="1"}': "2x120",
        },
        {
            'jobsight_job_gpu_idle{cluster="c",slurm_job="1"}': "1x120",
            'jobsight_job_gpu_held{cluster="c",slurm_job="1"}': "2x120",
        },
        100,
    ),
}


def alerts() -> list[dict[str, Any]]:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"] if "alert" in rule]


def _test(alert: str, series: dict[str, str], at: int, *, fires: bool) -> dict[str, Any]:
    query = f'count(ALERTS{{alertname="{alert}",alertstate="firing"}})'
    samples = [{"labels": "{}", "value": 1}] if fires else []
    return {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [{"expr": query, "eval_time": f"{at}m", "exp_samples": samples}],
    }


def test_every_alert_fires_when_it_should_and_only_then(tmp_path: Path) -> None:
    assert {alert["alert"] for alert in alerts()} == CASES.keys()
    checks = {
        alert: [
            _test(alert, case.fires, case.at, fires=True),
            _test(alert, case.quiet, case.at, fires=False),
        ]
        for alert, case in CASES.items()
    }
    checked = run_checks(tmp_path, checks)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def run_checks(
    directory: Path, checks: dict[str, list[dict[str, Any]]]
) -> subprocess.CompletedProcess[str]:
    """Let promtool check alerts, each with the rules that it needs: all of them for each check
    would take most of the time."""
    files = []
    groups = yaml.safe_load(RULES.read_text())["groups"]
    for alert, tests in checks.items():
        wanted = {None, *alert.split()}
        rules = [
            {
                "name": group["name"],
                # Recording rules have no alert.
                "rules": [rule for rule in group["rules"] if rule.get("alert") in wanted],
            }
            for group in groups
        ]
        name = alert.replace(" ", "-")
        (directory / f"{name}.rules.yml").write_text(yaml.safe_dump({"groups": rules}))
        file = directory / f"{name}.yml"
        document = {
            "rule_files": [f"{name}.rules.yml"], "evaluation_interval": "1m", "tests": tests
        }  # fmt: skip
        file.write_text(yaml.safe_dump(document))
        files.append(str(file))
    return promtool("test", "rules", *files)


#: Families that count what is tried again.
RETRIED = {"jobsight_profile_failed_sends_total"}


def test_every_family_that_counts_a_loss_has_an_alert() -> None:
    families = {**names.AGENT, **names.SERVER}
    families |= {each.name: each for each in (profile_plugin.DROPPED, profile_plugin.REFUSED)}
    families |= {profile_plugin.FAILED.name: profile_plugin.FAILED}
    losses = re.compile(r"_(lost|dropped|refused|left_out|overruns|faults|errors|push_failures)")
    counted = {name for name in families if losses.search(name)} - RETRIED
    assert len(counted) >= 14
    expressions = " ".join(str(alert["expr"]) for alert in alerts())
    assert {name for name in counted if name not in expressions} == set()


def worker_names() -> set[str]:
    """Of all workers in the code; of those with a name by cluster or sink, the first part."""
    found = {"server.remote_write"}
    for file in (ROOT / "src/jobsight").rglob("*.py"):
        found |= set(re.findall(r'PeriodicWorker\(\s*f?"([^"{]+)', file.read_text()))
    return found


def test_an_alert_is_about_each_worker_that_is_silent(tmp_path: Path) -> None:
    workers = worker_names()
    assert {"archive", "mail", "sink-", "statistics", "webhook", "scrape-"} <= workers
    query = 'count(ALERTS{alertname=~"Jobsight(Worker|Archive)Silent",alertstate="firing"})'
    tests = []
    for name in workers:
        series = {
            worker(name, "success_age_seconds"): "777600x120",
            "jobsight_server_remote_write_batches": "1x120",
        }
        tests.append(
            {
                "interval": "1m",
                "input_series": [{"series": each, "values": v} for each, v in series.items()],
                "promql_expr_test": [
                    {
                        "expr": query,
                        "eval_time": "60m",
                        "exp_samples": [{"labels": "{}", "value": 1}],
                    }
                ],
            }
        )
    checked = run_checks(tmp_path, {"JobsightWorkerSilent JobsightArchiveSilent": tests})
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_an_idle_remote_write_is_not_silent(tmp_path: Path) -> None:
    series = {
        worker("server.remote_write", "success_age_seconds"): "777600x120",
        "jobsight_server_remote_write_batches": "0x120",
    }
    tests = [_test("JobsightWorkerSilent", series, 60, fires=False)]
    checked = run_checks(tmp_path, {"JobsightWorkerSilent": tests})
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_the_test_of_the_rules_can_fail(tmp_path: Path) -> None:
    """promtool takes an alert that does not fire for what it is: the wrong expectation."""
    case = CASES["JobsightDeadLetters"]
    tests = [_test("JobsightDeadLetters", case.quiet, case.at, fires=True)]
    checked = run_checks(tmp_path, {"JobsightDeadLetters": tests})
    assert checked.returncode != 0
    assert "FAILED" in checked.stdout + checked.stderr


def test_every_command_in_an_alert_exists() -> None:
    text = RULES.read_text()
    for words in re.findall(r"`jobsight ([a-z -]+)", text):
        name, _, rest = words.partition(" ")
        assert name in COMMANDS, words
        if name in ("ca", "store"):
            module = importlib.import_module(COMMANDS[name].module)
            commands = getattr(module, "COMMANDS", None) or module._COMMANDS
            assert rest.split()[0] in commands, words


@pytest.mark.parametrize("alert", alerts(), ids=lambda alert: str(alert["alert"]))
def test_an_alert_says_what_happened_and_what_to_do(alert: dict[str, Any]) -> None:
    assert alert["labels"]["severity"] in ("info", "warning", "critical")
    assert alert["annotations"]["summary"]
    if not alert["alert"].startswith(("JobsightJob", "JobsightGpus")):
        # The others are about jobs: their findings say what to do.
        assert alert["annotations"]["description"].endswith(".")
