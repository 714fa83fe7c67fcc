"""The tutorial, executed word for word: as on a clone, in private mounts, so that the machine stays
as it is; and from the packages, in a fresh Debian 12."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from tests.deploy.roots import make_root

ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(r"^```bash\n(.*?)^```", re.MULTILINE | re.DOTALL)

#: Ends what a block started in the background.
END = "trap 'kill $(jobs -p) 2>/dev/null; wait' EXIT\n"
#: Empty directories in place of the machine's own, for this process and its children.
BEFORE = """set -euo pipefail
for directory in /etc/jobsight /etc/jobsight-node /var/lib/jobsight /var/spool/jobsight; do
    mkdir -p "$directory"
    mount -t tmpfs -o mode=0700 tmpfs "$directory"
done
mount -t tmpfs -o mode=0755 tmpfs /run
"""


#: The page has two ways, from packages and from a clone: how the blocks of each begin.
PACKAGES = ("apt-get install", "runuser ")
CLONE = ("make install", "jobsight serve ")


def script(without: tuple[str, ...]) -> str:
    """All blocks of the page but those of the other way."""
    text = (ROOT / "docs" / "tutorial.md").read_text()
    blocks = _BLOCK.findall(text)
    assert len(blocks) == text.count("```") // 2 >= 12
    taken = [block for block in blocks if not block.startswith(without)]
    assert len(taken) == len(blocks) - len(without)
    return END + "\n".join(taken)


def check(done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    said = done.stdout
    assert "the server accepts it" in said
    assert "FAIL" not in said
    assert "/usr/bin/sort" in said
    assert '"healthy":true' in said


@pytest.mark.root
@pytest.mark.server
def test_every_block_does_what_the_text_says() -> None:
    made = [Path("/etc/jobsight"), Path("/etc/jobsight-node"), Path("/var/spool/jobsight")]
    made = [directory for directory in made if not directory.exists()]
    with tempfile.TemporaryDirectory() as place:
        file = Path(place) / "tutorial.sh"
        file.write_text(BEFORE + script(without=PACKAGES))
        try:
            done = subprocess.run(
                # In the machine's own network: only there are process events, without which short
                # programs are polled.
                ["unshare", "--mount", "bash", str(file)],
                cwd=ROOT, capture_output=True, text=True, timeout=300,
            )  # fmt: skip
        finally:
            for directory in made:
                directory.rmdir()
    check(done)


@pytest.mark.root
@pytest.mark.packages
def test_every_block_works_from_the_packages_in_a_fresh_root(tmp_path: Path) -> None:
    root = make_root("bookworm", tmp_path / "root", "curl")
    assert not list(root.path.glob("usr/bin/python*"))
    # Of the installer, not of a package.
    (root.path / "etc/hosts").write_text("127.0.0.1 localhost\n")
    try:
        root.put(*(ROOT / "dist").glob("*.deb"))
        (root.path / "srv/tutorial.sh").write_text(
            "set -euo pipefail\ncd /srv\n" + script(without=CLONE)
        )
        done = root.run("bash", "/srv/tutorial.sh", check=False)
        check(done)
        assert (root.path / "opt/jobsight/VERSION").exists()
    finally:
        shutil.rmtree(root.path)
