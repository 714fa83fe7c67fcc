"""The text of a PDF, for comparisons."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest


def pdf_text(data: bytes, directory: Path, order: str = "-layout") -> str:
    """The text of all pages, as it is laid out, or with ``-raw`` in the order of the content, so
    that a text of several lines next to another one is whole; skips without pdftotext."""
    if shutil.which("pdftotext") is None:
        pytest.skip("pdftotext (poppler-utils) is not installed")
    file = directory / "report.pdf"
    file.write_bytes(data)
    done = subprocess.run(
        ["pdftotext", order, str(file), "-"], capture_output=True, check=True, timeout=60
    )
    return done.stdout.decode()


def squeezed(text: str) -> str:
    """Without white space and hyphens: a line of a page may end anywhere, and joins letters."""
    for ligature, letters in {"ﬁ": "fi", "ﬂ": "fl", "ﬀ": "ff", "ﬃ": "ffi", "ﬄ": "ffl"}.items():
        text = text.replace(ligature, letters)
    return "".join(text.split()).replace("-", "")
