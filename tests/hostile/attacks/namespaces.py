"""In a mount namespace of the user's own, common programs get the paths of others.

``/bin/sleep`` is bound to the path of a miner and of licensed software. Whoever learns names by
inode from any process then calls the ``sleep`` of all users so.
"""

from __future__ import annotations

import subprocess
import sys

from tests.hostile.attacks.common import Attack, main, parser

FORGED = ("/opt/xmrig/xmrig", "/opt/easybuild/software/VASP/6.4.2/bin/vasp_std")
_SCRIPT = """
mount -t tmpfs none /opt || exit 77
for path in "$@"; do
    mkdir -p "${path%/*}" && : > "$path" && mount --bind /bin/sleep "$path" || exit 77
    for run in 1 2 3 4 5; do "$path" 0.1; done
done
"""


def attack(running: Attack) -> None:
    command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", _SCRIPT, "sh"]
    while running.goes_on():
        # Where users may not have namespaces, this is counted and tried again.
        ended = subprocess.run([*command, *FORGED], stderr=subprocess.DEVNULL, check=False)
        running.counts["refused" if ended.returncode else "forged"] += 1
        running.pause(0.5)


if __name__ == "__main__":
    sys.exit(main(attack, parser(__doc__), sys.argv[1:]))
