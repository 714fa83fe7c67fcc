"""Slurm's configuration files for a bed, as text."""

import socket
from dataclasses import dataclass

from tests.bed import register
from tests.bed.settings import Settings

DATABASE = "slurm_accounting"


@dataclass(frozen=True)
class Configuration:
    """The files of one bed, once its ports, its cgroup version and its password are known."""

    settings: Settings
    port_base: int
    cgroup_version: str
    password: str

    @property
    def ports(self) -> dict[str, int]:
        return register.port_numbers(self.port_base, self.settings.nodes)

    @property
    def host(self) -> str:
        return socket.gethostname().partition(".")[0]

    @property
    def authentication(self) -> dict[str, str]:
        return {
            "AuthType": "auth/munge",
            "AuthInfo": f"socket={self.settings.munge_socket}",
            "AuthAltTypes": "auth/jwt",
            "AuthAltParameters": f"jwt_key={self.settings.path('run', 'jwt.key')}",
        }

    def slurm_conf(self) -> str:
        settings, path, ports = self.settings, self.settings.path, self.ports
        values = {
            "ClusterName": settings.name,
            "SlurmctldHost": f"{self.host}(127.0.0.1)",
            "SlurmUser": "slurm",
            "SlurmctldPort": str(ports["slurmctld"]),
            **self.authentication,
            "CredType": "cred/munge",
            "MpiDefault": "none",
            "MailProg": "/bin/true",
            "StateSaveLocation": str(path("slurmctld")),
            "SlurmctldPidFile": str(path("run", "slurmctld.slurm-pid")),
            "SlurmctldLogFile": str(path("log", "slurmctld.log")),
            "SlurmdSpoolDir": str(path("spool", "%n")),
            "SlurmdPidFile": str(path("run", "%n.slurm-pid")),
            "SlurmdLogFile": str(path("log", "slurmd.%n.log")),
            # The nodes claim what the settings say, not what slurmd finds.
            "SlurmdParameters": "config_overrides",
            "ReturnToService": "2",
            "SlurmctldTimeout": "30",
            "SlurmdTimeout": "60",
            "KillWait": "5",
            "ProctrackType": "proctrack/cgroup",
            "TaskPlugin": "task/cgroup,task/affinity",
            "JobAcctGatherType": settings.gather,
            "JobAcctGatherFrequency": f"task={settings.gather_seconds}",
            "SelectType": "select/cons_tres",
            "SelectTypeParameters": "CR_Core_Memory",
            "SchedulerType": "sched/backfill",
            # A test waits for its job: schedule at once and not in rounds of seconds.
            "SchedulerParameters": "bf_interval=2,batch_sched_delay=0,sched_interval=1,"
            "sched_min_interval=10000",
            "AccountingStorageType": "accounting_storage/slurmdbd",
            "AccountingStorageHost": "127.0.0.1",
            "AccountingStoragePort": str(ports["slurmdbd"]),
            # Not a password: towards slurmdbd this is the munge socket, and AuthInfo is not used.
            "AccountingStoragePass": str(settings.munge_socket),
            "AccountingStorageEnforce": "associations",
            "AccountingStoreFlags": "job_comment,job_script,job_env",
            "PrologFlags": "Alloc,Contain",
            "PluginDir": "",
            "PlugStackConfig": str(path("etc", "plugstack.conf")),
            "Prolog": settings.prolog,
            "Epilog": settings.epilog,
            "TaskProlog": settings.task_prolog,
            "TaskEpilog": settings.task_epilog,
        }
        gres = ""
        if settings.gpus_per_node:
            values |= {"GresTypes": "gpu", "AccountingStorageTRES": "gres/gpu"}
            gres = f" Gres=gpu:fake:{settings.gpus_per_node}"
        lines: list[str] = []
        for line in settings.extra:
            key, separator, value = line.partition("=")
            if separator and key.strip() in values:
                values[key.strip()] = value.strip()
            else:
                lines.append(line)
        cores = settings.cpus_per_node
        first, last = ports["slurmd-1"], ports[f"slurmd-{settings.nodes}"]
        lines += [
            f"NodeName={settings.name}-[1-{settings.nodes}] NodeHostname={self.host} "
            f"NodeAddr=127.0.0.1 Port=[{first}-{last}] CPUs={cores} Boards=1 SocketsPerBoard=1 "
            f"CoresPerSocket={cores} ThreadsPerCore=1 RealMemory={settings.memory_per_node}{gres} "
            "State=UNKNOWN",
            "PartitionName=main Nodes=ALL Default=YES MaxTime=1-00:00:00 DefaultTime=10 "
            "DefMemPerCPU=512 State=UP",
            "PartitionName=short Nodes=ALL MaxTime=1 DefMemPerCPU=256 State=UP",
        ]
        return "\n".join([*_assignments(values), *lines, ""])

    def slurmdbd_conf(self) -> str:
        path = self.settings.path
        values = {
            **self.authentication,
            "DbdHost": self.host,
            "DbdAddr": "127.0.0.1",
            "DbdPort": str(self.ports["slurmdbd"]),
            "SlurmUser": "slurm",
            "StorageType": "accounting_storage/mysql",
            "StorageHost": "127.0.0.1",
            "StoragePort": str(self.ports["mariadb"]),
            "StorageUser": "slurm",
            "StoragePass": self.password,
            "StorageLoc": DATABASE,
            "LogFile": str(path("log", "slurmdbd.log")),
            "PidFile": str(path("run", "slurmdbd.slurm-pid")),
        }
        return "\n".join([*_assignments(values), ""])

    def cgroup_conf(self) -> str:
        values = {
            "CgroupPlugin": f"cgroup/{self.cgroup_version}",
            "CgroupMountpoint": "/sys/fs/cgroup",
            "CgroupAutomount": "no",  # the machine's mounts are not the bed's to change
            "IgnoreSystemd": "no" if self.settings.systemd else "yes",
            "ConstrainCores": "yes",
            "ConstrainRAMSpace": "yes",
            "ConstrainSwapSpace": "yes",
            "AllowedSwapSpace": "0",
            "ConstrainDevices": "yes",
        }
        return "\n".join([*_assignments(values), ""])

    def gres_conf(self) -> str:
        last = self.settings.gpus_per_node - 1
        if last < 0:
            return ""
        return f"Name=gpu Type=fake File={self.settings.path('dev')}/gpu[0-{last}]\n"

    def files(self) -> dict[str, str]:
        """All but slurmdbd.conf, which holds the password."""
        return {
            "slurm.conf": self.slurm_conf(),
            "cgroup.conf": self.cgroup_conf(),
            "gres.conf": self.gres_conf(),
            "acct_gather.conf": "",
            "plugstack.conf": "",
            **self.settings.files,
        }


def _assignments(values: dict[str, str]) -> list[str]:
    return [f"{key}={value}" for key, value in values.items() if value]
