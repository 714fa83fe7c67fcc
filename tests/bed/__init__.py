"""A whole Slurm on one machine, for tests and for trying things: `python -m tests.bed up`."""

from tests.bed.cluster import Cluster
from tests.bed.errors import BedError, BedUnavailableError
from tests.bed.settings import Settings

__all__ = ["BedError", "BedUnavailableError", "Cluster", "Settings"]
