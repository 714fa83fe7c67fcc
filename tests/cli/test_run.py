"""``jobsight run`` for real: commands as jobs on this machine, and what their reports say."""

import fcntl
import os
import pty
import pwd
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobsight.config.settings import Settings
from jobsight.server.serve import BackgroundServer
from jobsight.util.outer import parse_rfc3339
from tests.agent.left_behind import USER_PREFIX
from tests.agent.workloads import JOBSIGHT, Home, adds_up, attributed, row
from tests.alone import alone_with
from tests.waiting import wait_until

pytestmark = pytest.mark.timeout(300)

ROOT = Path(__file__).parent.parent.parent


def loop(command: str, count: int) -> tuple[str, ...]:
    script = f"i=0; while [ $i -lt {count} ]; do {command}; i=$((i+1)); done"
    return ("/bin/sh", "-c", script)


# What the command sees.


def test_output_is_untouched_byte_for_byte(home: Home) -> None:
    data = bytes(range(256)) * 500
    ended = home.run("/bin/cat", input=data)
    assert ended.returncode == 0
    assert ended.stdout == data


def test_standard_error_is_the_command_s_and_then_the_report(home: Home) -> None:
    ended = home.run("/bin/sh", "-c", "echo words >&2")
    assert ended.stderr.startswith(b"words\nJob 1  sh")


def test_findings_need_no_server(home: Home) -> None:
    rules = home.folder / "rules.yaml"
    rules.write_text(
        "adjust:\n"
        "  - rules: [cpu-not-used]\n"
        "    parameters: {floor: 0.001 core s, nothing: 90 %}\n"
        "    minimum: {elapsed: 0 s, coverage: 0 %}\n"
    )
    config = home.folder / "jobsight.toml"
    config.write_text(f'[findings]\nminimum_elapsed = 0\nrules = ["{rules}"]\n')
    options = ("--config", str(config), "--cpus", "1")
    ended = home.run("/bin/sleep", "0.5", options=options)
    assert b"The job used no CPU time" in ended.stderr
    assert [found["kind"] for found in home.report()["findings"]] == ["cpu-not-used"]


def test_quiet_says_nothing(home: Home) -> None:
    ended = home.run("/bin/sh", "-c", "exit 0", options=("--quiet",))
    assert (ended.stdout, ended.stderr) == (b"", b"")


def test_the_command_knows_its_run(home: Home) -> None:
    ended = home.run("/bin/sh", "-c", 'echo "$JOBSIGHT_JOB"')
    assert home.report()["run"] == ended.stdout.decode().strip()


def test_the_command_has_the_descriptors_signals_and_limits_it_would_have_had(home: Home) -> None:
    script = (
        "ls /proc/self/fd; grep -E 'Sig(Blk|Ign|Cgt)' /proc/self/status; ulimit -Sn; ulimit -Hn"
    )
    plain = subprocess.run(["/bin/sh", "-c", script], capture_output=True, check=True)
    assert home.run("/bin/sh", "-c", script).stdout == plain.stdout


def test_what_was_ignored_stays_ignored(home: Home) -> None:
    status = ["grep", "SigIgn", "/proc/self/status"]
    plain = subprocess.run(["nohup", *status], capture_output=True, check=True)
    ended = subprocess.run(["nohup", *home.command(*status)], capture_output=True, check=True)
    assert ended.stdout == plain.stdout


# What the report says.


@pytest.mark.root
def test_300_executions_and_exit_code_7(home: Home) -> None:
    script = "i=0; while [ $i -lt 300 ]; do /bin/true; i=$((i+1)); done; exit 7"
    ended = home.run("sh", "-c", script)
    report = home.report()
    assert ended.returncode == 7
    assert (report["state"], report["exit_code"]) == ("FAILED", 7)
    assert row(report, "/true")["executions"] == 300
    assert row(report, "/true")["processes"] == 300
    assert report["coverage"]["executables"]["events_lost"] == 0


@pytest.mark.root
@pytest.mark.parametrize("kind", ["wall", "processor"])
@pytest.mark.parametrize(("milliseconds", "count"), [(50, 40), (3, 400)], ids=["50ms", "3ms"])
def test_the_cpu_time_is_attributed(
    home: Home, burners: dict[str, Path], kind: str, milliseconds: int, count: int
) -> None:
    """The share that is attributed depends on the load; bench_attribution measures it."""
    home.run(*loop(f"{burners[kind]} {milliseconds * 1000}", count))
    report = home.report()
    assert row(report, burners[kind].name)["executions"] == count
    assert {part["kind"] for part in report["executables"]} <= {"executable", "remainder"}
    assert adds_up(report)


@pytest.mark.root
def test_the_remainder_is_a_row_and_the_coverage_says_so(home: Home) -> None:
    home.run(*loop("/bin/true", 50))
    report = home.report()
    rest = report["executables"][-1]
    assert (rest["kind"], rest["path"]) == ("remainder", "not attributed")
    assert adds_up(report)
    assert re.search(r"exit records account for [\d.]+ % of the CPU time", str(report))
    coverage = report["coverage"]["executables"]
    assert coverage["cpu_share"] == pytest.approx(attributed(report), abs=0.001)


@pytest.mark.root
def test_the_total_is_the_counter_of_the_cgroup(home: Home, burners: dict[str, Path]) -> None:
    # The job itself reads its counter as the last thing it does, and its end takes some
    # milliseconds more.
    read = (
        "from pathlib import Path\n"
        "from jobsight.agent.probes.cgroup_files import CgroupV1, CgroupV2\n"
        "from jobsight.agent.launch.cgroup import find_hierarchies\n"
        "found = find_hierarchies()\n"
        "own = found.v1.get('cpuacct')\n"
        "ours = own is not None and own.name.startswith('jobsight-')\n"
        "print((CgroupV1(own, None) if ours else CgroupV2(found.v2)).cpu().time, flush=True)\n"
        "import os\n"
        "os._exit(0)\n"
    )
    script = f'{burners["wall"]} 100000; {burners["processor"]} 600000; exec "$0" -c "$1"'
    ended = home.run("/bin/sh", "-c", script, sys.executable, read)
    read_by_job = int(ended.stdout) / 1e9
    assert read_by_job >= 0.6
    report = home.report()
    assert read_by_job <= report["cpu"]["cpu_seconds"]
    # Nothing counts twice: the programs and what is not attributed are the counter.
    assert adds_up(report)


@pytest.mark.root
def test_threads_are_booked_on_their_program(home: Home, tmp_path: Path) -> None:
    source = tmp_path / "threads.c"
    source.write_text("""
#include <pthread.h>
#include <time.h>
static void *work(void *nothing) {
    struct timespec t;
    do clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t); while (t.tv_nsec < 300000000);
    return 0;
}
int main(void) {
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) pthread_create(&threads[i], 0, work, 0);
    pthread_exit(0);  /* the first thread ends before the others */
}
""")
    program = tmp_path / "threads"
    subprocess.run(["cc", "-pthread", "-o", program, source], check=True)
    home.run(str(program))
    report = home.report()
    # Without the threads that end after the first it would be a quarter of that.
    assert row(report, "/threads")["cpu_seconds"] >= 1.1
    assert row(report, "/threads")["failures"] == 0


@pytest.mark.root
def test_a_chain_of_programs_is_split(home: Home, burners: dict[str, Path]) -> None:
    wall, processor = burners["wall"], burners["processor"]
    code = (
        "import os, time\nend = time.process_time() + 0.2\nwhile time.process_time() < end: pass\n"
        f"os.execv({str(processor)!r}, ['burn', '200000'])"
    )
    script = f'{wall} 1000; exec /usr/bin/python3 -c "$1"'
    home.run("/bin/sh", "-c", script, "sh", code)
    report = home.report()
    for path in (wall.name, processor.name, os.path.realpath("/usr/bin/python3")):
        assert row(report, path)["executions"] == 1
    assert report["cpu"]["cpu_seconds"] >= 0.4
    assert adds_up(report)


@pytest.mark.root
def test_a_shell_that_slept_gets_nothing_of_the_program_it_became(
    home: Home, burners: dict[str, Path]
) -> None:
    """Divided by time, a shell that waits as long as its program spins would get half of it."""
    script = f"sleep 0.5; exec {burners['processor']} 300000"
    home.run("sh", "-c", 'for i in 1 2 3; do sh -c "$0"; done', script)
    rows = {row["path"].rpartition("/")[2]: row for row in home.report()["executables"]}
    shell = sum(row["cpu_seconds"] for name, row in rows.items() if name in ("dash", "sh", "bash"))
    spun = rows[burners["processor"].name]["cpu_seconds"]
    assert spun >= 0.8 * 3 * 0.3
    assert shell < 0.5 * spun


@pytest.mark.root
def test_a_thousand_processes_at_once(home: Home) -> None:
    script = "i=0; while [ $i -lt 1200 ]; do sleep 3 & i=$((i+1)); done; wait"
    ended = home.run("/bin/sh", "-c", f"ulimit -n 256; {script}", preexec_fn=few_descriptors)
    report = home.report()
    assert ended.returncode == 0, ended.stderr
    assert b"Traceback" not in ended.stderr
    assert row(report, "/sleep")["executions"] == 1200
    # It would be missing had the descriptors run out.
    assert report["coverage"]["io"]["quality"] in ("exact", "estimate")


def go_first() -> None:
    """Before all others on the machine; where the kernel groups sessions, a niceness alone counts
    among the programs of one session."""
    os.setsid()
    os.nice(-20)
    autogroup = Path("/proc/self/autogroup")
    if autogroup.exists():
        autogroup.write_text("-20")


def few_descriptors() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 8192))


@pytest.mark.root
def test_memory_beyond_the_limit_is_out_of_memory(home: Home) -> None:
    eat = "x = bytearray(200 * 2**20)"
    ended = home.run("/usr/bin/python3", "-c", eat, options=("--memory", "64M"))
    report = home.report()
    assert ended.returncode == 128 + signal.SIGKILL
    assert (report["state"], report["exit_signal"]) == ("OUT_OF_MEMORY", signal.SIGKILL)
    assert report["memory"]["requested_bytes"] == 64 * 2**20
    assert report["memory"]["oom_kills"] >= 1


@pytest.mark.root
def test_a_limit_too_small_for_any_program(home: Home) -> None:
    ended = home.run("/bin/true", options=("--memory", "4k"))
    assert ended.returncode != 0
    assert b"Traceback" not in ended.stderr


def test_cpus_are_those_asked_for(home: Home) -> None:
    ended = home.run("nproc", options=("--cpus", "1"))
    assert ended.stdout == b"1\n"
    assert home.report()["cpu"]["requested_cpus"] == 1


# Words of any kind.

WILD = (
    "100% of 'it' \"all\" {braces} {0} %s $HOME `id`\nnew line\t"
    "\u00e4\u4e2d\U0001f600 \x1b[31m\\x41"
)


def test_names_and_arguments_of_any_kind(home: Home) -> None:
    options = ("--name", WILD, "--account", WILD)
    ended = home.run("/bin/echo", "-n", WILD, options=options)
    assert ended.stdout.decode() == WILD
    assert b"\x1b[31m" not in ended.stderr
    report = home.report()
    assert report["name"] == report["account"] == WILD
    assert report["command"] == f"/bin/echo -n {WILD}"


def test_bytes_that_are_not_utf8(home: Home) -> None:
    ended = home.run("/bin/echo", "-n", b"a\xffb", options=("--name", os.fsdecode(b"n\xfe")))
    assert ended.stdout == b"a\xffb"
    assert home.report()["name"] == "n\\xfe"
    assert home.report()["command"] == "/bin/echo -n a\\xffb"


def test_four_thousand_characters(home: Home) -> None:
    long = "x" * 4096
    ended = home.run("/bin/echo", long, options=("--name", long))
    assert ended.stdout == long.encode() + b"\n"
    assert home.report()["name"] == long


@pytest.mark.root
@pytest.mark.parametrize("name", [b"a\xff%s{}'\"\n", b"x" * 255])
def test_an_executable_with_any_name(home: Home, burners: dict[str, Path], name: bytes) -> None:
    program = os.path.join(os.fsencode(home.folder), name)
    shutil.copy(burners["wall"], program)
    home.run("/bin/sh", "-c", 'i=0; while [ $i -lt 50 ]; do "$0" 3000; i=$((i+1)); done', program)
    from jobsight.text import path_bytes

    rows = home.report()["executables"]
    assert [part["executions"] for part in rows if path_bytes(part["path"]) == program] == [50]
    assert not [part for part in rows if part["kind"] == "path unknown"]


# What cannot be run.


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (("/no/such/file",), 127, "/no/such/file: no such file"),
        (("no-such-command",), 127, "no-such-command: command not found; is it on PATH?"),
        (("{folder}/plain",), 126, "{folder}/plain: not executable; chmod +x would make it so"),
        (("{folder}",), 126, "{folder}: is a directory, not a command"),
        (("{folder}/text",), 126, "{folder}/text: not a program this machine can execute"),
        (("{folder}/script",), 127, "{folder}/script: its interpreter (first line) does not exist"),
        ((), 2, "no command was given; expected: jobsight run -- COMMAND ARGUMENT..."),
        (("",), 2, "no command was given; expected: jobsight run -- COMMAND ARGUMENT..."),
    ],
)
def test_what_cannot_be_run_is_one_line_and_leaves_nothing(
    home: Home, arguments: tuple[str, ...], code: int, sentence: str
) -> None:
    (home.folder / "plain").write_text("")
    (home.folder / "text").write_text("words")
    (home.folder / "text").chmod(0o755)
    (home.folder / "script").write_text("#!/no/such/interpreter\n")
    (home.folder / "script").chmod(0o755)
    ended = home.run(*(word.format(folder=home.folder) for word in arguments))
    assert ended.returncode == code
    assert ended.stderr.decode() == f"jobsight: {sentence.format(folder=home.folder)}\n"
    assert home.count() == 0
    assert list(home.folder.glob("spool/*")) == []


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--memory", "much"), "jobsight: --memory 'much' is not a size; expected 512M"),
        (("--memory", "0"), "jobsight: --memory '0' is not a size"),
        (("--cpus", "4096"), "jobsight: --cpus 4096: this machine has "),
        (("--cpus", "0"), "--cpus"),
        (("--cpus", "two"), "--cpus"),
    ],
)
def test_what_cannot_be_asked_for(home: Home, options: tuple[str, ...], sentence: str) -> None:
    ended = home.run("/bin/touch", str(home.folder / "started"), options=options)
    assert ended.returncode == 2
    assert sentence in ended.stderr.decode()
    assert not (home.folder / "started").exists()
    assert home.count() == 0


def test_a_store_that_is_no_database_is_refused_before_anything_starts(home: Home) -> None:
    home.store.write_text("a letter, not a database\n" * 100)
    ended = home.run("/bin/touch", str(home.folder / "started"))
    assert ended.returncode == 1
    assert len(ended.stderr.decode().splitlines()) == 1
    assert str(home.store) in ended.stderr.decode()
    assert not (home.folder / "started").exists()
    assert home.store.read_text().startswith("a letter")


def test_a_store_of_a_newer_version_is_refused_before_anything_starts(home: Home) -> None:
    import sqlite3

    home.run("/bin/true")
    with sqlite3.connect(home.store) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    connection.close()
    ended = home.run("/bin/touch", str(home.folder / "started"))
    assert ended.returncode == 1
    assert len(ended.stderr.decode().splitlines()) == 1
    assert "newer" in ended.stderr.decode()
    assert not (home.folder / "started").exists()


# Signals.


@pytest.fixture
def no_signal_ignored() -> Iterator[None]:
    """What is started under nohup ignores HUP, and so does all that it starts: no shell can trap
    it then."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("no_signal_ignored")
@pytest.mark.parametrize("name", ["TERM", "INT", "USR1", "HUP"])
def test_a_signal_reaches_the_command(home: Home, name: str) -> None:
    script = f"trap 'echo got; exit 5' {name}; echo ready; while :; do sleep 0.05; done"
    with home.start("/bin/sh", "-c", script) as job:
        assert job.stdout is not None
        assert job.stdout.readline() == b"ready\n"
        job.send_signal(getattr(signal, f"SIG{name}"))
        out, _ = job.communicate()
    assert (job.returncode, out) == (5, b"got\n")


@pytest.mark.parametrize("name", ["TERM", "INT", "USR1", "KILL"])
def test_a_command_that_dies_of_a_signal(home: Home, name: str) -> None:
    number = getattr(signal, f"SIG{name}")
    with home.start("/bin/sh", "-c", "echo $$; exec sleep 60", options=("-q",)) as job:
        assert job.stdout is not None
        pid = int(job.stdout.readline())
        if name == "KILL":
            os.kill(pid, number)
        else:
            job.send_signal(number)
        job.communicate()
    assert job.returncode == 128 + number
    report = home.report()
    assert report["exit_signal"] == number
    assert report["state"] == ("CANCELLED" if name in ("TERM", "INT") else "FAILED")


def test_ctrl_c_reaches_the_command_once(home: Home) -> None:
    script = (
        "import signal, time\n"
        "count = 0\n"
        "def count_it(*_):\n"
        "    global count; count += 1\n"
        "signal.signal(signal.SIGINT, count_it)\n"
        "print('ready', flush=True)\n"
        "end = time.monotonic() + 60\n"
        "while not count and time.monotonic() < end: time.sleep(0.05)\n"
        "time.sleep(1)\n"
        "print('count', count, flush=True)\n"
    )
    leader, follower = pty.openpty()

    def take_terminal() -> None:
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    job = subprocess.Popen(
        home.command("/usr/bin/python3", "-c", script, options=("-q",)),
        stdin=follower,
        stdout=follower,
        stderr=follower,
        preexec_fn=take_terminal,
    )
    os.close(follower)
    shown = b""
    while b"ready" not in shown:
        shown += os.read(leader, 1000)
    os.write(leader, b"\x03")
    while b"count" not in shown or not shown.endswith(b"\n"):
        shown += os.read(leader, 1000)
    job.wait()
    os.close(leader)
    assert b"count 1" in shown
    assert job.returncode == 0


def test_only_the_main_thread_receives_signals(home: Home) -> None:
    """Another one does not learn whether a signal is of the terminal, and would pass on a second
    one to a command that has it already."""
    with home.start("/bin/sh", "-c", "echo ready; read line", stdin=subprocess.PIPE) as job:
        assert job.stdout is not None
        assert job.stdout.readline() == b"ready\n"
        blocked = {}
        for task in Path(f"/proc/{job.pid}/task").iterdir():
            mask = re.search(r"SigBlk:\s*(\w+)", (task / "status").read_text())
            assert mask is not None
            blocked[task.name] = bool(int(mask[1], 16) & 1 << signal.SIGINT - 1)
        job.communicate(b"go\n")
    assert len(blocked) > 2
    assert {task for task, is_blocked in blocked.items() if not is_blocked} <= {str(job.pid)}


def test_signals_while_left_overs_are_ended_do_not_kill_the_launcher(
    home: Home, tmp_path: Path
) -> None:
    ready = tmp_path / "ready"
    script = (
        f"(trap '' TERM; : > {ready}; sleep 60) & "
        f"while [ ! -e {ready} ]; do sleep 0.01; done; echo $$"
    )
    with home.start("/bin/sh", "-c", script, options=("-q",)) as job:
        assert job.stdout is not None
        shell = Path(f"/proc/{int(job.stdout.readline())}")
        wait_until(lambda: not shell.exists())
        for number in (signal.SIGTERM, signal.SIGUSR2, signal.SIGHUP, signal.SIGINT) * 3:
            job.send_signal(number)
            time.sleep(0.05)
        job.communicate()
    assert job.returncode == 0
    assert home.report()["state"] == "COMPLETED"


def test_left_overs_are_ended_and_said(home: Home) -> None:
    ended = home.run("/bin/sh", "-c", "sleep 60 & sleep 61 & exit 3")
    assert ended.returncode == 3
    assert b"jobsight: 2 processes outlived the command and were ended" in ended.stderr


def test_a_daemon_is_a_left_over_too(home: Home) -> None:
    started = home.folder / "started"
    script = (
        f"setsid sh -c 'sleep 60 & echo >{started}; exec sleep 60' & "
        f"until [ -s {started} ]; do sleep 0.05; done"
    )
    ended = home.run("/bin/sh", "-c", script)
    assert ended.returncode == 0
    assert re.search(rb"jobsight: [2-4] processes outlived the command", ended.stderr)


@pytest.mark.root
def test_a_killed_launcher_does_not_harm_the_next(home: Home) -> None:
    with alone_with("left-over-cgroups"):
        with home.start("/bin/sh", "-c", "echo $$; exec sleep 60") as job:
            assert job.stdout is not None
            pid = int(job.stdout.readline())
            job.kill()
            job.wait()
            assert home.run("/bin/true").returncode == 0
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not Path(f"/proc/{pid}").exists())
        sweep = (
            "from jobsight.agent.launch.cgroup import remove_stale_cgroups as sweep;"
            "print(len(sweep(older_than=0)))"
        )
        swept = subprocess.run([sys.executable, "-c", sweep], capture_output=True, check=True)
        assert int(swept.stdout) >= 1


# With a server.


@pytest.fixture
def settings(home: Home) -> Settings:
    made = Settings()
    made.store.location = str(home.store)
    made.server.port = 0
    return made


def test_with_a_server_the_run_goes_through_it(home: Home, settings: Settings) -> None:
    with BackgroundServer(settings):
        # Nobody but the server can open the store now, were it not for HTTP.
        ended = home.run("/bin/echo", "hello")
        assert ended.returncode == 0
        assert ended.stderr.startswith(b"Job 1  echo")
    assert home.report()["state"] == "COMPLETED"


def test_a_server_killed_in_the_middle_loses_nothing(home: Home) -> None:
    serve = [*JOBSIGHT, "serve", "--port", "0", "--store", str(home.store)]
    with subprocess.Popen(serve, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as server:
        assert server.stdout is not None
        while b"Ctrl-C" not in server.stdout.readline():
            pass
        script = 'echo ready; while [ ! -e "$0" ]; do sleep 0.05; done'
        with home.start("/bin/sh", "-c", script, str(home.folder / "go")) as job:
            assert job.stdout is not None
            job.stdout.readline()
            server.kill()
            server.wait()
            (home.folder / "go").touch()
            _, said = job.communicate()
    assert job.returncode == 0
    assert re.search(rb"batches are kept in .*spool/run-1; the next jobsight run", said)
    assert home.run("/bin/true").returncode == 0
    assert home.report("1")["state"] == "COMPLETED"
    assert list(home.folder.glob("spool/*")) == []


def test_a_server_that_hangs_does_not_hold_the_command(home: Home) -> None:
    import socket

    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(1)
        token = home.folder / "token"
        token.write_text("a-token-of-the-tests-of-run\n")
        token.chmod(0o600)
        environment = os.environ | {
            "JOBSIGHT_SERVER__URL": f"http://127.0.0.1:{deaf.getsockname()[1]}",
            "JOBSIGHT_SERVER__TOKEN_FILE": str(token),
        }
        with home.start("/bin/sh", "-c", "echo ran", env=environment) as job:
            assert job.stdout is not None
            assert job.stdout.readline() == b"ran\n"
            deaf.close()
            job.communicate()
    assert job.returncode == 0


def test_several_at_once(home: Home) -> None:
    jobs = [home.start("/bin/sh", "-c", "sleep 0.2", options=("-q",)) for _ in range(4)]
    for job in jobs:
        _, said = job.communicate()
        assert (job.returncode, said) == (0, b"")
    assert home.count() == 4


# As an ordinary user.


@pytest.fixture
def user() -> Iterator[tuple[str, Home]]:
    name = f"{USER_PREFIX}{os.getpid()}"
    subprocess.run(["useradd", "--create-home", "--shell", "/bin/sh", name], check=True)
    try:
        entry = pwd.getpwnam(name)
        with tempfile.TemporaryDirectory(prefix="jobsight-user-") as folder:
            os.chown(folder, entry.pw_uid, entry.pw_gid)
            yield name, Home(Path(folder))
    finally:
        subprocess.run(["userdel", "--remove", name], check=True, capture_output=True)


def can_read(name: str) -> bool:
    asked = ["runuser", "-u", name, "--", sys.executable, "-c", "import jobsight"]
    return subprocess.run(asked, capture_output=True, check=False).returncode == 0


@pytest.mark.root
def test_as_an_ordinary_user(user: tuple[str, Home], burners: dict[str, Path]) -> None:
    name, home = user
    if not can_read(name):
        pytest.skip("an ordinary user may not read this checkout")
    program = home.folder / "burn"
    shutil.copy(burners["processor"], program)
    program.chmod(0o755)
    script = "$0 800000; $0 600000 & $0 600000 & wait"
    command = home.command("/bin/sh", "-c", script, str(program))
    ended = subprocess.run(
        ["runuser", "-u", name, "--", *command], capture_output=True, check=False, cwd="/"
    )
    assert ended.returncode == 0, ended.stderr
    report = home.report("1")
    assert report["user"] == name
    assert report["cpu"]["cpu_seconds"] >= 2
    assert report["cpu"]["source"] == "rusage"
    assert report["coverage"]["cpu"]["quality"] == "exact"
    assert report["coverage"]["executables"]["quality"] == "estimate"
    # Of each process what it used after the last sample is not attributed.
    burned = row(report, "/burn")
    assert burned["cpu_estimated_seconds"] == burned["cpu_seconds"] > 0
    assert adds_up(report)
    assert any(
        note.startswith("Split by executable: estimate") for note in report["coverage_notes"]
    )
    assert b"estimate" in ended.stderr


@pytest.mark.root
def test_as_an_ordinary_user_left_overs_are_ended(user: tuple[str, Home]) -> None:
    name, home = user
    if not can_read(name):
        pytest.skip("an ordinary user may not read this checkout")
    script = "setsid sh -c 'sleep 60 & sleep 60' & sleep 0.3; exit 4"
    command = home.command("/bin/sh", "-c", script, options=("-q",))
    ended = subprocess.run(
        ["runuser", "-u", name, "--", *command], capture_output=True, check=False, cwd="/"
    )
    assert ended.returncode == 4
    assert b"outlived the command" in ended.stderr


# Fault 1: the bar of the memory contradicted the kernel's peak.


@pytest.mark.root
@pytest.mark.parametrize(
    ("memory", "script", "expected"),
    [
        (
            "1G",
            "import time; time.sleep(1.3); x = bytearray(800 << 20); del x; time.sleep(1)",
            800 * 2**20,
        ),
        ("20M", "x = bytearray(200 << 20)", 19 * 2**20),
    ],
)
def test_a_peak_between_two_samples_is_in_the_bar(
    home: Home, memory: str, script: str, expected: int
) -> None:
    home.run("/usr/bin/python3", "-c", script, options=("--memory", memory))
    report = home.report()
    assert expected <= report["memory"]["used_peak_bytes"] <= report["memory"]["kernel_peak_bytes"]
    assert report["memory"]["share"] * report["memory"]["requested_bytes"] >= expected


# Fault 4: the end of a command was found by polling after one second.


_LAUNCH = """
import sys, threading, time
from jobsight.agent.collector import Collector
from jobsight.agent.launch import launcher
launcher._WAIT_INTERVAL = 3600.0
# It does not block SIGCHLD, so the kernel gives it the signal and nobody notices.
threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()
for number in range(12):
    collector = Collector(None, cluster="test", node="n1")
    request = launcher.RunRequest(arguments=["/bin/true"], job_id=number + 1)
    assert launcher.Launcher(request, collector).run().status == 0
    collector.close()
"""


def test_the_end_of_a_command_is_noticed_without_sigchld() -> None:
    subprocess.run([sys.executable, "-c", _LAUNCH], check=True, timeout=120)


@pytest.mark.root
def test_a_command_that_ends_while_the_launcher_sleeps_has_its_own_end(
    home: Home, tmp_path: Path
) -> None:
    pipe, told = tmp_path / "pipe", tmp_path / "pid"
    os.mkfifo(pipe)
    job = home.start("/bin/sh", "-c", f"echo $$ > {told}; read line < {pipe}")
    pid = wait_until(lambda: told.exists() and told.read_text().strip())
    job.send_signal(signal.SIGSTOP)
    pipe.write_text("go\n")
    status = Path(f"/proc/{pid}/status")
    wait_until(lambda: "State:\tZ" in status.read_text())
    ended = time.time_ns()
    job.send_signal(signal.SIGCONT)
    job.communicate()
    assert parse_rfc3339(home.report()["end"]) <= ended


@pytest.mark.root
def test_as_an_ordinary_user_a_python_program_is_an_execution(user: tuple[str, Home]) -> None:
    name, home = user
    if not can_read(name):
        pytest.skip("an ordinary user may not read this checkout")
    # The launcher itself runs in the same interpreter.
    interpreter = os.path.realpath(sys.executable)
    command = home.command(interpreter, "-c", "import time; time.sleep(1)")
    subprocess.run(
        ["runuser", "-u", name, "--", *command], capture_output=True, check=True, cwd="/"
    )
    assert row(home.report("1"), interpreter)["executions"] == 1
