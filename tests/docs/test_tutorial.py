"""The tutorial, executed word for word: in private mounts, so that the machine stays as it is."""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(r"^```bash\n(.*?)^```", re.MULTILINE | re.DOTALL)

#: Empty directories in place of the machine's own, for this process and its children.
BEFORE = """set -euo pipefail
for directory in /etc/jobsight /etc/jobsight-node /var/lib/jobsight /var/spool/jobsight; do
    mkdir -p "$directory"
    mount -t tmpfs -o mode=0700 tmpfs "$directory"
done
mount -t tmpfs -o mode=0755 tmpfs /run
trap 'kill $(jobs -p) 2>/dev/null; wait' EXIT
"""


@pytest.mark.root
@pytest.mark.server
def test_every_block_does_what_the_text_says() -> None:
    text = (ROOT / "docs" / "tutorial.md").read_text()
    blocks = _BLOCK.findall(text)
    assert len(blocks) == text.count("```") // 2 >= 8
    made = [Path("/etc/jobsight"), Path("/etc/jobsight-node"), Path("/var/spool/jobsight")]
    made = [directory for directory in made if not directory.exists()]
    with tempfile.TemporaryDirectory() as place:
        script = Path(place) / "tutorial.sh"
        script.write_text(BEFORE + "\n".join(blocks))
        try:
            done = subprocess.run(
                # In the machine's own network: only there are process events, without which short
                # programs are polled.
                ["unshare", "--mount", "bash", str(script)],
                cwd=ROOT, capture_output=True, text=True, timeout=300,
            )  # fmt: skip
        finally:
            for directory in made:
                directory.rmdir()
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    said = done.stdout
    assert "the server accepts it" in said
    assert "FAIL" not in said
    assert "/usr/bin/sort" in said
    assert '"healthy":true' in said
