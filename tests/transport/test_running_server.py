import os
import stat
from pathlib import Path

import pytest

from jobsight.transport.running_server import TokenError, load_token, read_token, same


def test_a_new_token_is_private_and_stays(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "token"
    before = os.umask(0)
    try:
        token = load_token(file)
    finally:
        os.umask(before)
    assert len(token) >= 43
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert load_token(file) == token
    assert load_token(tmp_path / "other") != token


@pytest.mark.parametrize(
    ("content", "mode", "sentence"),
    [
        (b"", 0o600, "holds nothing"),
        (b"short", 0o600, "too short a token"),
        (b"a" * 40, 0o640, r"can be used by others \(mode 0640\)"),
        (b"a" * 40, 0o604, r"can be used by others \(mode 0604\)"),
        (b"a" * 20 + b" " + b"b" * 20, 0o600, "one word of printable"),
        (b"\xff" * 40, 0o600, "one word of printable"),
    ],
)
def test_files_that_are_refused(tmp_path: Path, content: bytes, mode: int, sentence: str) -> None:
    file = tmp_path / "token"
    file.write_bytes(content)
    file.chmod(mode)
    with pytest.raises(TokenError, match=sentence) as caught:
        load_token(file)
    assert "\n" not in str(caught.value)
    assert file.read_bytes() == content


def test_links_and_folders_are_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(TokenError, match="cannot be read"):
        load_token(tmp_path / "link")
    with pytest.raises(TokenError, match="not a regular file"):
        read_token(tmp_path)


def test_comparison_takes_any_text() -> None:
    assert same("a", "a")
    assert not same("ä\udcff", "a")
