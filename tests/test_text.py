from hypothesis import given
from hypothesis import strategies as st

from jobsight.text import path_bytes, readable_path, readable_text


def test_printable_text_stays() -> None:
    assert readable_path("/home/jürgen/数据/a b".encode()) == "/home/jürgen/数据/a b"


def test_other_bytes_are_escaped() -> None:
    assert readable_path(b"/a\xff\n\x1b[31m") == r"/a\xff\x0a\x1b[31m"
    # The right-to-left override can make a path read as another one.
    assert readable_path("a\u202eb".encode()) == r"a\xe2\x80\xaeb"


def test_backslash_is_never_ambiguous() -> None:
    assert readable_path(rb"\x41") == r"\\x41"
    assert readable_path(b"\x01") == r"\x01"


@given(st.binary(max_size=64))
def test_way_back(path: bytes) -> None:
    text = readable_path(path)
    assert text.isprintable()
    assert path_bytes(text) == path


@given(st.text(alphabet=st.characters(), max_size=32))
def test_any_text_is_printable(text: str) -> None:
    assert readable_text(text).isprintable()
