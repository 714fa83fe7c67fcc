"""Sizes as people and Slurm write them: 512M, 2G, 1.5GiB. A bare number is bytes."""

from __future__ import annotations

import re
from typing import Final

from jobsight.errors import ConfigError

_POWERS: Final = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5}
_SIZE: Final = re.compile(
    r"(\d{1,18}(?:\.\d{1,18})?)\s*([kmgtp]?)(?:i?b)?", re.IGNORECASE | re.ASCII
)


def parse_size(text: str, where: str) -> int:
    """Read a size in bytes; units are powers of 1024, as in Slurm. ``where`` names the option."""
    match = _SIZE.fullmatch(text.strip())
    size = round(float(match[1]) * 1024 ** _POWERS[match[2].lower()]) if match else 0
    if size <= 0 or size >= 2**62:
        raise ConfigError(f"{where} {text!r} is not a size; right would be 512M, 2G or 1.5G")
    return size
