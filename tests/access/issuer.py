"""npm's certified oidc-provider on loopback, and a browser that signs in there."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urljoin

import httpx2 as httpx

from tests.ports import free_port
from tests.waiting import wait_until

PROJECT = Path(__file__).parents[2]
PACKAGES = PROJECT / ".cache" / "npm"
SECRET = "secret of the client"


def is_installed() -> bool:
    return shutil.which("node") is not None and (PACKAGES / "node_modules/oidc-provider").is_dir()


@contextmanager
def running(redirect: str, folder: Path, port: int | None = None) -> Iterator[str]:
    """Start the provider; gives the address of the issuer."""
    port = port or free_port()
    # Node looks for packages next to the program.
    program = PACKAGES / "issuer.mjs"
    shutil.copy(Path(__file__).with_name("issuer.mjs"), program)
    with (folder / "issuer.log").open("wb") as log:
        process = subprocess.Popen(
            ["node", str(program), str(port), redirect], stdout=log, stderr=log, cwd=PACKAGES
        )
    try:
        wait_until(lambda: _answers(port))
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(60)


def sign_in_at(address: str, user: str) -> str:
    """Go through the pages of the provider as a browser does; returns where it sends us."""
    with httpx.Client(follow_redirects=False, trust_env=False, timeout=30) as browser:
        for _ in range(12):
            answer = browser.get(address)
            while answer.status_code == 200:
                action = re.search(r'action="([^"]+)"', answer.text)
                assert action is not None, answer.text
                prompt = re.search(r'name="prompt" value="([^"]+)"', answer.text)
                form = {"prompt": prompt[1] if prompt else "login", "login": user, "password": "x"}
                answer = browser.post(urljoin(str(answer.url), action[1]), data=form)
            address = urljoin(str(answer.url), answer.headers["location"])
            if "/sign-in/oidc/return" in address:
                return address
    raise AssertionError(f"the provider does not come back: {address}")


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True
