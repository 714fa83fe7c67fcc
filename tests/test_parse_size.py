from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as some

from jobsight.errors import ConfigError
from jobsight.text import parse_size


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1", 1),
        ("512M", 512 * 2**20),
        ("512m", 512 * 2**20),
        ("2G", 2 * 2**30),
        ("1.5GiB", 3 * 2**29),
        ("1.5 gb", 3 * 2**29),
        ("4k", 4096),
        ("1T", 2**40),
        ("1P", 2**50),
        (" 100B ", 100),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text, "--memory") == size


@pytest.mark.parametrize(
    "text",
    ["", "0", "0.1", "-1", "many", "1Q", "1GG", "1e9", "nan", "inf", "9" * 400, "5P5", "\u0663"],
)
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^--memory .* is not a size; expected 512M"):
        parse_size(text, "--memory")


@given(some.text(max_size=12))
def test_any_text_is_a_size_or_an_error(text: str) -> None:
    with suppress(ConfigError):
        assert 0 < parse_size(text, "--memory") < 2**62
