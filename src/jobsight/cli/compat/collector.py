"""``sams-collector.py``: measures one job of this node; started by a prolog, as SAMS documents it.

:func:`collect` is the command, :func:`try_outputs` its option ``--test-output``.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import shutil
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

from jobsight.agent.job import Document, JobView
from jobsight.agent.outputs.worker import OutputPlan
from jobsight.agent.processes.process import JobUsage
from jobsight.cli.compat.parser import command_parser
from jobsight.config import paths
from jobsight.config.load import load_settings
from jobsight.config.settings import short_host_name
from jobsight.errors import ConfigError, JobsightError
from jobsight.model import JobInfo, Sighting
from jobsight.util.locks import LockFile
from jobsight.util.logging import configure_logging, parse_level
from jobsight.util.service import (
    Background,
    go_to_background,
    make_absolute,
    stopping_on_signals,
)

if TYPE_CHECKING:
    from jobsight.agent.job import Probe
    from jobsight.agent.jobs.identity import JobQuery
    from jobsight.config.settings import Settings
    from jobsight.sams.node.settings import SamsSettings


logger = logging.getLogger(__name__)

DEFAULT_CONFIG: Final = "/etc/sams/sams-collector.yaml"
#: Seconds for the outputs after the end of the job; systemd kills after 90.
END_TIMEOUT: Final = 30.0


def parser(program: str) -> argparse.ArgumentParser:
    description = "Measure one job on this node and write its record when it ends."
    parser = command_parser(program, description)
    parser.add_argument(
        "--config", metavar="FILE", help=f"Settings file of SAMS (default: {DEFAULT_CONFIG})"
    )
    parser.add_argument("--jobid", metavar="N", help="Raw job id (JobIDRaw)")
    parser.add_argument("--node", metavar="NAME", help="Name of the node (default: the host name)")
    parser.add_argument("--daemon", action="store_true", help="Run in the background")
    parser.add_argument("--pidfile", metavar="FILE", help="Write the PID to FILE and lock it")
    parser.add_argument("--logfile", metavar="FILE", help="Log to FILE")
    parser.add_argument(
        "--loglevel",
        dest="log_level",
        metavar="LEVEL",
        help="Log level, CRITICAL to DEBUG (default: ERROR)",
    )
    parser.add_argument(
        "--test-output", metavar="FILE.json", help="Pass this document to every output and exit"
    )
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; an error is printed as one line."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    program = "sams-collector"
    options = parser(program).parse_args(given)
    if options.jobid is None:
        parser(program).print_help()
        return 1
    try:
        return collect(options)
    except JobsightError as error:
        print(f"{program}: {error}", file=sys.stderr)
        return error.exit_code


def collect(options: argparse.Namespace) -> int:
    """Measure the job of the options."""
    job_id = parse_job_id(options.jobid)
    make_absolute(options)
    background = go_to_background() if options.daemon and not options.test_output else None
    try:
        return _collect(options, job_id, background)
    except JobsightError as error:
        if background is None:
            raise
        # After the report the parent has exited; the log has the error then.
        logger.error("%s", error)
        background.report(error.exit_code, f"sams-collector: {error}\n")
        return error.exit_code
    except Exception:
        logger.exception("internal error")
        if background is not None:
            background.report(1, "sams-collector: internal error during startup\n")
        raise


def _collect(options: argparse.Namespace, job_id: int, background: Background | None) -> int:
    # Imported after the fork: the libraries of samplers must not be shared with the parent.
    from jobsight.sams.node.settings import load_sams_settings

    node = options.node or short_host_name()
    settings = load_sams_settings(options.config or DEFAULT_CONFIG)
    prepare_log(options, settings, job_id=str(job_id), node=node, background=background)
    if options.test_output:
        return try_outputs(settings.outputs, Path(options.test_output), job_id, node)
    with ExitStack() as stack:
        directory = run_directory()
        owner = f"a collector for job {job_id} on {node}"
        name = f"collector-{job_id}@{_file_name(node)}.lock"
        lock = LockFile(directory / name, owner)
        stack.callback(lock.close)
        if options.pidfile:
            stack.callback(LockFile(Path(options.pidfile), owner).close)
        return follow(settings, job_id, node, background)


def follow(
    settings: SamsSettings, job_id: int | None, node: str, background: Background | None
) -> int:
    """Run samplers and outputs of the settings until the job ends or a signal arrives."""
    from jobsight.agent.agent import Agent
    from jobsight.agent.exporter.service import ExporterService
    from jobsight.agent.jobs.identity import info_from_prolog
    from jobsight.agent.outputs.worker import OutputWorker, stop_all
    from jobsight.cli.agent import job_query
    from jobsight.sams.node.collector import JobCollector

    workers = [OutputWorker(plan) for plan in settings.outputs]
    outputs = [worker.job for worker in workers]
    own = load_settings()
    cluster, directory = own.own_cluster(), run_directory()
    engine: Agent | JobCollector
    exporter: ExporterService | None = None
    if job_id is None:
        # The agent of a node tells what it measures, and what its outputs lose.
        exporter = ExporterService(own.agent)
        engine = Agent(
            cluster=cluster,
            node=node,
            spool=None,
            samplers=exporter.plans(settings.samplers),
            outputs=outputs,
            run_directory=directory,
            query_jobs=job_query(own, node),
            listen=True,
        )
        exporter.start(engine, workers)
    else:
        engine = JobCollector(
            settings,
            outputs,
            cluster=cluster,
            job_id=job_id,
            node=node,
            run_directory=directory,
            info=info_from_prolog(os.environ, cluster, job_id),
            query=_job_query(own, settings.slurm_directory, job_id),
        )
    with stopping_on_signals(engine.stop):
        if background is not None:
            background.report(0, _warnings(settings))
        try:
            engine.run()
        finally:
            written = stop_all(workers, END_TIMEOUT)
            if exporter is not None:
                exporter.close()
    return 0 if written else 1


def _job_query(settings: Settings, directory: str | None, job_id: int) -> JobQuery | None:
    """The query for the job; None if it is disabled or Slurm is not installed."""
    if not settings.agent.query_slurm:
        return None
    from jobsight.agent.jobs.identity import JobQuery
    from jobsight.scheduler.adapters.squeue import job_by_id
    from jobsight.scheduler.sources.commands import path_environment, run_command

    environment = path_environment(settings.scheduler.slurm_directory or directory)
    if shutil.which("squeue", path=(environment or os.environ).get("PATH")) is None:
        return None
    run = partial(run_command, environment=environment)
    return JobQuery(lambda: job_by_id(job_id, cluster=settings.own_cluster(), run=run))


def run_directory() -> Path:
    """The directory of the control socket of the node's agent, and of the lock."""
    return paths.private_directory(Path(load_settings().agent.run_directory))


def prepare_log(
    options: argparse.Namespace,
    settings: SamsSettings,
    *,
    job_id: str,
    node: str,
    background: Background | None,
) -> None:
    """Set the umask, start logging, and print the warnings about the settings."""
    if background is not None:
        os.umask(settings.umask)
    level = parse_level("--loglevel", options.log_level) if options.log_level else settings.loglevel
    configure_logging(
        level,
        file=_log_file(options.logfile or settings.logfile, job_id, node),
        stream="none" if background else "stderr",
        pattern=settings.logformat,
    )
    if background is None:
        sys.stderr.write(_warnings(settings))
    for sentence in settings.warnings:
        logger.warning("%s", sentence)


def _warnings(settings: SamsSettings) -> str:
    return "".join(f"sams-collector: warning: {sentence}\n" for sentence in settings.warnings)


def _log_file(pattern: str | None, job_id: str, node: str) -> str | None:
    from jobsight.agent.outputs.mapping import check_template

    if not pattern:
        return None
    names = {"jobid": job_id, "node": _file_name(node)}
    check_template("logfile", pattern, names)
    return pattern % names


def _file_name(node: str) -> str:
    from jobsight.agent.outputs.sams_record import safe_part

    return safe_part(node)


def parse_job_id(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 0 < int(text) < 2**63:
        raise ConfigError(
            f"--jobid: {text!r} is not a raw job id; expected a number as in SLURM_JOB_ID "
            "(JobIDRaw, not the 12_3 of an array)"
        )
    return int(text)


def view_of(job_id: int, node: str) -> JobView:
    """The view of a job that does not exist."""
    cluster = load_settings().own_cluster()
    return JobView(
        sighting=Sighting(cluster, job_id, node, "", time.time_ns()),
        info=JobInfo(cluster=cluster, job_id=job_id, source="test"),
        # Outputs read only the identity of the job.
        probe=cast("Probe", None),
        usage=JobUsage(),
    )


def read_document(file: Path) -> dict[str, Document]:
    try:
        document = json.loads(file.read_bytes())
    except OSError as error:
        raise JobsightError(f"{file} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise JobsightError(f"{file}: is not JSON: {error}") from None
    if not isinstance(document, dict) or not all(isinstance(v, dict) for v in document.values()):
        raise JobsightError(f"{file}: expected one object per sampler, as in the record of a job")
    return document


def try_outputs(plans: Sequence[OutputPlan], file: Path, job_id: int, node: str) -> int:
    """Pass a document to each output once, without threads and retries, and print the results."""
    documents = read_document(file)
    view = view_of(job_id, node)
    failed = 0
    for plan in plans:
        try:
            output = plan.factory(view)
            try:
                for sampler, document in documents.items():
                    output.store(view, sampler, document)
                output.write(view, documents)
            finally:
                output.close()
        except Exception as error:
            failed += 1
            print(f"{plan.name}: failed: {type(error).__name__}: {error}", file=sys.stderr)
        else:
            print(f"{plan.name}: done")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
