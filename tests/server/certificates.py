"""Certificates for the tests of TLS: an authority, a server, a node, and a stranger."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.sams.front import make_papers


class Papers:
    """Files in one directory, made once for all tests."""

    def __init__(self, folder: Path) -> None:
        if shutil.which("openssl") is None:
            pytest.skip("needs openssl; `make test` as root installs it")
        self.folder = folder
        make_papers(folder)

    @property
    def authority(self) -> str:
        return str(self.folder / "ca.pem")

    def pair(self, name: str) -> tuple[str, str]:
        """The certificate and the key of "server", "node" or "stranger"."""
        return str(self.folder / f"{name}.pem"), str(self.folder / f"{name}.key")
