"""`python -m tests.slurm.pages --name js1`: the pages of a bed's jobs, until told to end."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from pathlib import Path

from tests.bed.__main__ import existing
from tests.slurm.site import Site


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.slurm.pages", description=__doc__)
    parser.add_argument("--name", default="js1", help="of the cluster (js1)")
    cluster = existing(parser.parse_args().name, "")
    if not cluster.running():
        print("the cluster is not up", file=sys.stderr)
        return 1
    ends = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
    # Blocked before anything is started, so that an early end still takes everything down.
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)
    with tempfile.TemporaryDirectory() as folder, Site(cluster, Path(folder)) as site:
        print(f"Pages of its jobs, live: {site.url}/ (token in {site.token_file})", flush=True)
        signal.sigwait(ends)
    return 0


if __name__ == "__main__":
    sys.exit(main())
