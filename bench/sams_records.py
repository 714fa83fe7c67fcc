"""A directory of SAMS records as a busy site has them after a night, the same in every run."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

SEED = 20261115
#: Records of one subdirectory, as sites set `jobid_hash_size`.
HASH_SIZE = 1000
FIRST_JOB = 4_200_000
FIRST_START = 1_788_000_000

_SYSTEM = [f"/usr/bin/{name}" for name in ("bash", "cp", "sed", "awk", "srun", "tar", "python3")]
_SITE = [f"/sw/{name}/{release}/bin/{name}" for name in ("gmx", "vasp", "lmp", "cp2k", "namd2")
         for release in ("2022.1", "2023.4", "2024.2")]  # fmt: skip


def write_records(directory: Path, count: int) -> int:
    """Write so many records into hashed subdirectories; returns the number of jobs."""
    random_numbers = random.Random(SEED)
    written = jobs = 0
    while written < count:
        job_id = FIRST_JOB + jobs
        jobs += 1
        nodes = min(count - written, random_numbers.choice((1, 1, 1, 1, 1, 2, 2, 4, 8)))
        job = _job(random_numbers, job_id, nodes)
        place = directory / str(job_id // HASH_SIZE)
        place.mkdir(parents=True, exist_ok=True)
        for _ in range(nodes):
            node = f"n{random_numbers.randrange(1500):04d}"
            while (place / f"{job_id}.{node}.json").exists():
                node = f"n{random_numbers.randrange(1500):04d}"
            document = _document(random_numbers, job_id, node, job)
            text = json.dumps(document, sort_keys=True, separators=(",", ":"))
            (place / f"{job_id}.{node}.json").write_text(text)
            written += 1
    return jobs


def _job(random_numbers: random.Random, job_id: int, nodes: int) -> dict[str, Any]:
    start = FIRST_START + (job_id - FIRST_JOB) * 7
    user = random_numbers.randrange(400)
    own = [f"/home/u{user:03d}/build/solver{random_numbers.randrange(3)}"]
    paths = random_numbers.sample(_SYSTEM, random_numbers.randint(1, 6))
    paths += random_numbers.sample(_SITE, random_numbers.randint(0, 2))
    return {
        "paths": paths + (own if random_numbers.random() < 0.4 else []),
        "start": start,
        "end": start + random_numbers.randint(30, 86400),
        "info": {
            "account": f"p{user % 60}",
            "cpus": str(nodes * 28),
            "jobname": random_numbers.choice(("run", "relax", "md", "train")),
            "nodes": str(nodes),
            "partition": "batch",
            "starttimestamp": float(start),
            "uid": str(10_000 + user),
            "username": f"u{user:03d}",
        },
    }


def _document(
    random_numbers: random.Random, job_id: int, node: str, job: dict[str, Any]
) -> dict[str, Any]:
    execs = {
        path: {
            "user": round(random_numbers.expovariate(0.001), 2),
            "system": round(random_numbers.expovariate(0.1), 2),
        }
        for path in job["paths"]
    }
    return {
        "sams.sampler.Core": {"jobid": job_id, "node": node},
        "sams.sampler.SlurmInfo": job["info"],
        "sams.sampler.Software": {
            "execs": execs,
            "start_time": job["start"] + random_numbers.randint(0, 3),
            "end_time": job["end"] - random_numbers.randint(0, 29),
        },
    }
