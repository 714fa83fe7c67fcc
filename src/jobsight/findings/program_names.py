"""What the name of a program says about its part in a job.

Names are evidence of what ran, unlike the name of a job, which its user chose. A terminal cannot be
seen: an interactive session is known by Slurm's interactive step, by the command that submitted the
job, and by programs that only sessions have. Scripts are known only where the site has enabled them
(the path of an interpreter, two slashes, the script).
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from jobsight.model import SCRIPT_SEPARATOR

#: Shells and launchers.
_WAITING: Final = re.compile(
    r"bash|sh|dash|zsh|ksh|csh|tcsh|fish|slurm_script|busybox|"
    r"srun|mpirun|mpiexec(\.hydra)?|orterun|prterun|prun|orted|prted|hydra_(pmi|bstrap)_proxy|"
    r"slurmstepd|timeout|time|nohup|env|xargs|parallel|apptainer|singularity|starter(-suid)?|"
    r"conmon|podman|enroot|tini|dumb-init|sudo|nice|numactl|taskset"
)
_SESSIONS: Final = re.compile(
    r"jupyter.*|.*ipykernel.*|rserver|rsession.*|rstudio.*|code-server|code-tunnel|cursor-server|"
    r"ttyd|tmate|tmux.*|screen|xvnc|x11vnc|vncserver|xfce4-session|gnome-session.*|mate-session|"
    r"sshd.*|theia|openvscode-server|pluto",
    re.IGNORECASE,
)
#: Parts of paths of programs that only sessions have.
_SESSION_PLACES: Final = (b"/.vscode-server/", b"/.cursor-server/", b"/code-server/")
_SERVERS: Final = re.compile(
    r"postgres|mysqld|mariadbd|mongod|redis-server|memcached|nginx|httpd|apache2|caddy|haproxy|"
    r"ollama|llama-server|tritonserver|text-generation-.*|vllm|tensorboard|mlflow|"
    r"dask-scheduler|dask-worker|raylet|gcs_server|etcd|consul|minio|influxd|prometheus|"
    r"grafana(-server)?|uvicorn|gunicorn|streamlit|shiny-server",
    re.IGNORECASE,
)
#: Programs whose exit code is an answer (1 is "no", not a failure), or that scripts try out.
_ANSWERS: Final = re.compile(
    r"\[|test|[efz]?grep|rg|ag|diff|cmp|comm|expr|which|readlink|realpath|pgrep|pkill|kill|killall|"
    r"false|ls|stat|tty|stty|mountpoint|getent|id|tput|lsof|fuser|ping|nvidia-smi|lspci|pidof|"
    r"scontrol|squeue|sacct|module|modulecmd|tclsh|lua|git|ldconfig|objdump|file|head|find"
)
_INTERACTIVE_COMMAND: Final = re.compile(r"\s*(\S*/)?(salloc\b|srun\b.*\s--pty\b)")

#: Paths whose names are remembered: the same programs run in many jobs.
_REMEMBERED: Final = 4096


def names_of(path: bytes) -> tuple[str, ...]:
    """The name of the file, and that of its script or module if it is known."""
    executable, _, script = path.partition(SCRIPT_SEPARATOR)
    parts = (executable, script.removeprefix(b"-m ")) if script else (executable,)
    return tuple(part[part.rfind(b"/") + 1 :].decode("utf-8", "replace") for part in parts)


@lru_cache(_REMEMBERED)
def is_waiting(path: bytes) -> bool:
    """Whether it is a shell or a launcher, which only waits for the programs that it started."""
    return _WAITING.fullmatch(names_of(path)[0]) is not None


@lru_cache(_REMEMBERED)
def is_sleep(path: bytes) -> bool:
    return names_of(path)[0] == "sleep"


@lru_cache(_REMEMBERED)
def answers_by_exit_code(path: bytes) -> bool:
    """Whether a failure of the program is usually an answer that its script expects."""
    return _ANSWERS.fullmatch(names_of(path)[0]) is not None


@lru_cache(_REMEMBERED)
def is_session(path: bytes) -> bool:
    """Whether only an interactive session has such a program: a notebook, a desktop, an editor."""
    return any(map(_SESSIONS.fullmatch, names_of(path))) or any(
        place in path for place in _SESSION_PLACES
    )


@lru_cache(_REMEMBERED)
def is_server(path: bytes) -> bool:
    """Whether it is a program that waits for requests."""
    return any(map(_SERVERS.fullmatch, names_of(path)))


def is_interactive_command(submit_line: str) -> bool:
    """Whether the command that submitted the job requested a terminal."""
    return _INTERACTIVE_COMMAND.match(submit_line) is not None
