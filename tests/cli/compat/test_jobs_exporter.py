"""The command ``jobs_exporter``, with jobs shaped like Slurm's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from jobsight.cli.compat.jobs_exporter import main, parse_timer, read_blacklist
from jobsight.errors import ConfigError
from tests.agent.exporter.settings import SETTINGS
from tests.agent.slurm_trees import SlurmNode, available
from tests.ports import free_port
from tests.prometheus.readers import Samples, fetch, samples, values
from tests.prometheus.servers import promtool
from tests.waiting import wait_until


def test_a_blacklist_names_users(tmp_path: Path) -> None:
    file = tmp_path / "blacklist"
    file.write_text("1000\n\n# comment\nroot  # the admin\n 7 \n")
    assert read_blacklist(file) == [1000, 0, 7]
    file.write_text("1000\nnobody-of-this-name\n")
    with pytest.raises(ConfigError, match=r"line 2: there is no user 'nobody-of-this-name'"):
        read_blacklist(file)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_blacklist(tmp_path / "none")


def test_a_timer_is_seconds() -> None:
    assert parse_timer("15") == 15.0
    for wrong in ("0", "x", "nan", "1e9"):
        with pytest.raises(ConfigError, match="--timer"):
            parse_timer(wrong)


def test_mistakes_are_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    config = tmp_path / "c.toml"
    config.write_text(f'[agent]\nrun_directory = "{tmp_path}"\n')
    assert main(["--config", str(config), "--listen", "here"]) != 0
    assert main(["--config", str(config), "--timer", "soon"]) != 0
    said = capsys.readouterr().err.splitlines()
    assert [row.split(":")[0] for row in said] == ["jobs_exporter", "jobs_exporter"]


def test_it_prints_the_hash_of_a_password() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "jobsight.cli.compat.jobs_exporter", "--hash-password"],
        input="secret\n",
        text=True,
        capture_output=True,
        check=True,
    )
    from jobsight.agent.exporter.passwords import Password

    assert Password("u", done.stdout.strip()).matches("u", "secret")


@contextmanager
def exporting(folder: Path, node: SlurmNode, *options: str) -> Iterator[str]:
    """A real exporter that sees this node's jobs; gives its address."""
    config = folder / "jobsight.toml"
    config.write_text(SETTINGS.format(folder=folder, root=node.root))
    address = f"127.0.0.1:{free_port()}"
    process = subprocess.Popen(
        [sys.executable, "-m", "jobsight.cli.compat.jobs_exporter", "--config", str(config),
         "--listen", address, *options],
        env=dict(os.environ),
        stderr=subprocess.PIPE,
    )  # fmt: skip
    url = f"http://{address}/metrics"
    try:
        wait_until(lambda: answers(url), 60)
        yield url
    finally:
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (0, b"")


def answers(url: str) -> Samples | None:
    try:
        return samples(fetch(url))
    except OSError:
        return None


@pytest.mark.root
@pytest.mark.skipif(not available(), reason="needs the hierarchies of cgroup v1")
def test_jobs_of_the_node_come_and_go(tmp_path: Path) -> None:
    (tmp_path / "blacklist").write_text("4242\n")
    node = SlurmNode()
    try:
        with exporting(tmp_path, node, "-t", "0.2", "-b", str(tmp_path / "blacklist")) as url:
            seen = node.job(11)
            seen.step("sleep", "60", tasks=2, step="0")
            seen.step("sleep", "60", step="1")
            node.job(12, uid=4242).step("sleep", "60")
            labels = {"instance": "n1", "slurm_job": "11"}

            def whole() -> Samples | None:
                now = answers(url) or {}
                counted = values(now, "jobs_spawned_processes", **labels)
                # All sleep, and what they used before that is in a sample.
                used = values(now, "jobs_cpu_time_total", **labels)
                return now if (counted, used) == ({"": 3.0}, {"": seen.used() / 1e9}) else None

            found = wait_until(whole)
            assert not values(found, "jobs_rss", slurm_job="12")
            checked = promtool("check", "metrics", text=fetch(url))
            disliked = {row.split()[0] for row in checked.stderr.splitlines()}
            assert disliked == {"jobs_read_mb", "jobs_write_mb"}
            openmetrics = fetch(url, {"Accept": "application/openmetrics-text"}).decode()
            assert len(list(text_string_to_metric_families(openmetrics))) > 40
            seen.end()
            # One last value for a scrape, then nothing.
            assert values(answers(url) or {}, "jobs_cpu_time_total", **labels)
            wait_until(lambda: not values(answers(url) or {}, "jobs_cpu_time_total", **labels))
    finally:
        node.close()
