from __future__ import annotations

from pathlib import Path

from jobsight.util.mounts import file_system, is_network

MOUNTINFO = b"""\
22 1 8:1 / / rw - ext4 /dev/sda1 rw
40 22 0:50 / /data/\\043shared rw shared:1 - nfs4 server:/data rw
"""


def test_the_number_sign_of_a_mount_point_is_unescaped(tmp_path: Path) -> None:
    file = tmp_path / "mountinfo"
    file.write_bytes(MOUNTINFO)
    assert file_system(Path("/data/#shared/store.db"), file) == "nfs4"
    assert is_network(file_system(Path("/data/#shared/store.db"), file))
    assert file_system(Path("/data/store.db"), file) == "ext4"
    assert file_system(Path("/"), tmp_path / "none") is None
