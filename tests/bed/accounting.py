"""slurmdbd, and the cluster, accounts and users it must know before a job is accepted."""

import subprocess
from collections.abc import Mapping

from tests.bed.configuration import Configuration
from tests.bed.daemon import Daemon, port_open
from tests.bed.errors import BedError
from tests.bed.settings import Settings, write_file
from tests.bed.users import PEOPLE


def daemon(configuration: Configuration, environment: Mapping[str, str]) -> Daemon:
    settings, port = configuration.settings, configuration.ports["slurmdbd"]
    return Daemon(
        "slurmdbd",
        settings,
        ["slurmdbd", "-D"],
        environment,
        lambda: port_open(port),
        log=settings.path("log", "slurmdbd.log"),
    )


def populate(settings: Settings, environment: Mapping[str, str]) -> None:
    """All at once from a file: each `sacctmgr add` would take half a second."""
    lines = [
        f"Cluster - '{settings.name}'",
        "Parent - 'root'",
        "User - 'root':DefaultAccount='root':AdminLevel='Administrator'",
    ]
    for person in PEOPLE:
        account = person.account
        lines.append(f"Account - '{account}':Description='{account}':Organization='jobsight'")
    for person in PEOPLE:
        lines.append(f"Parent - '{person.account}'")
        lines.append(f"User - '{person.user}':DefaultAccount='{person.account}'")
    path = settings.path("etc", "associations.txt")
    write_file(path, "\n".join([*lines, ""]))
    answer = subprocess.run(
        ["sacctmgr", "--immediate", "load", f"file={path}"],
        env=dict(environment), stdin=subprocess.DEVNULL, capture_output=True, text=True,
        check=False, timeout=settings.ready_seconds, start_new_session=True,
    )  # fmt: skip
    if answer.returncode != 0:
        raise BedError(f"sacctmgr load failed: {answer.stdout}{answer.stderr}")
