"""MariaDB with a data directory of its own, reachable by root's socket and slurmdbd's port only."""

import os
import pwd
import subprocess
from collections.abc import Mapping

from tests.bed.configuration import DATABASE, Configuration
from tests.bed.daemon import Daemon
from tests.bed.errors import BedError
from tests.bed.settings import Settings, write_file


def prepare(configuration: Configuration, environment: Mapping[str, str]) -> None:
    settings, mysql = configuration.settings, pwd.getpwnam("mysql")
    folder = settings.path("mysql")
    folder.mkdir(mode=0o750)
    (folder / "tmp").mkdir(mode=0o700)
    for path in (folder, folder / "tmp"):
        os.chown(path, mysql.pw_uid, mysql.pw_gid)
    # Root without a password, but only through the socket: the port is open to everybody here.
    answer = subprocess.run(
        ["mariadb-install-db", "--no-defaults", "--user=mysql", f"--datadir={folder}/data",
         "--auth-root-authentication-method=socket", "--skip-test-db", "--skip-name-resolve",
         # A mariadbd that starts removes the temporary tables of all others in the same directory.
         f"--tmpdir={folder}/tmp"],
        env=dict(environment), capture_output=True, text=True, check=False,
        start_new_session=True,
    )  # fmt: skip
    if answer.returncode != 0:
        raise BedError(f"mariadb-install-db failed:\n{answer.stdout[-2000:]}{answer.stderr}")
    account = f"slurm@127.0.0.1 identified by '{configuration.password}'"
    write_file(
        folder / "init.sql",
        f"create user if not exists {account};\ngrant all on {DATABASE}.* to slurm@127.0.0.1;\n",
        0o600,
        mysql.pw_uid,
        mysql.pw_gid,
    )


def daemon(settings: Settings, port: int, environment: Mapping[str, str]) -> Daemon:
    folder = settings.path("mysql")

    def ready() -> bool:
        command = ["mariadb-admin", "--no-defaults", f"--socket={folder}/socket", "ping"]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    return Daemon(
        "mariadbd",
        settings,
        ["mariadbd", "--no-defaults", f"--datadir={folder}/data", f"--socket={folder}/socket",
         f"--pid-file={folder}/mariadbd.pid", f"--init-file={folder}/init.sql",
         f"--tmpdir={folder}/tmp",
         "--bind-address=127.0.0.1", f"--port={port}", "--skip-name-resolve", "--skip-log-bin",
         # Without defaults it would be latin1, and job names outside it become question marks.
         "--character-set-server=utf8mb4", "--collation-server=utf8mb4_general_ci",
         "--innodb-buffer-pool-size=64M", "--innodb-lock-wait-timeout=900",
         "--innodb-flush-log-at-trx-commit=0", f"--log-error={folder}/error.log"],
        environment,
        ready,
        user="mysql",
        log=folder / "error.log",
    )  # fmt: skip
