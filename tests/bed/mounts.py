"""Mounts below a directory that is about to be removed."""

import subprocess
from pathlib import Path


def below(folder: str) -> list[str]:
    """Mount points inside the directory, deepest first."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    # Blanks in a path are written as octal escapes.
    points = [line.split()[4].encode().decode("unicode_escape") for line in lines]
    return sorted((point for point in points if point.startswith(folder + "/")), reverse=True)


def unmount_below(folder: str) -> None:
    """Removing files must not cross into a file system that somebody mounted there."""
    for point in below(folder):
        subprocess.run(["umount", point], check=True, start_new_session=True)
