"""A service that speaks S3, in a process of its own on loopback."""

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import boto3

from jobsight.config.settings import ArchiveSettings, S3Settings

ACCESS, SECRET = "key of the tests", "secret of the tests"


class Service(NamedTuple):
    url: str

    def settings(self, folder: Path, bucket: str) -> ArchiveSettings:
        """A new bucket, and settings that lead to a prefix in it."""
        client = boto3.client(
            "s3",
            endpoint_url=self.url,
            region_name="us-east-1",
            aws_access_key_id=ACCESS,
            aws_secret_access_key=SECRET,
        )
        client.create_bucket(Bucket=bucket)
        client.close()
        file = folder / "secret"
        file.write_text(SECRET + "\n")
        return ArchiveSettings(
            location=f"s3://{bucket}/a prefix",
            s3=S3Settings(
                endpoint=self.url,
                region="us-east-1",
                access_key=ACCESS,
                secret_key_file=str(file),
            ),
        )


@contextmanager
def running(**environment: str) -> Iterator[Service]:
    """Start the service on a port that the system picks."""
    # Into a file: it writes a line for each request, and a pipe that nobody reads would stop it.
    with tempfile.NamedTemporaryFile("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"],
            stdout=log,
            stderr=subprocess.STDOUT,
            env=os.environ | environment,
        )
        try:
            yield Service(_address(process, Path(log.name)))
        finally:
            process.kill()
            process.wait()


def _address(process: subprocess.Popen[bytes], log: Path) -> str:
    for _ in range(1800):
        found = re.search(r"Running on (http://\S+)", log.read_text())
        if found:
            return found[1]
        assert process.poll() is None, log.read_text()
        time.sleep(0.05)
    raise AssertionError("the service did not start")
