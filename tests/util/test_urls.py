from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobsight.util.urls import without_credentials

SECRET = "hunter2"


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("http://host:8080/path", "http://host:8080/path"),
        ("https://user:hunter2@host:9200", "https://host:9200"),
        ("https://hunter2@host", "https://host"),
        ("postgresql://user:hunter2@host:5432/base", "postgresql://host:5432/base"),
        ("postgresql:///base?host=/run&password=hunter2", "postgresql:///base"),
        ("mongodb://u:hunter2@one:1,two:2/base?ssl=1", "mongodb://one:1,two:2/base"),
        ("http://host/#hunter2", "http://host/"),
        # Invalid addresses, which appear in messages about them.
        ("http://user:hunter2@[::1", "http://[::1"),
        ("http://user:hunter2@@host", "http://host"),
        ("http://user:hun/ter2@host", "http://***"),
        ("http://user:hun?ter2@host", "http://***"),
        ("http:/user:hunter2@host", "host"),
        ("user:hunter2@host:80", "host:80"),
        ("//user:hunter2@host/", "host/"),
        ("/var/lib/jobsight@site/store.db", "/var/lib/jobsight@site/store.db"),
        ("", ""),
    ],
)
def test_an_address_is_shown_without_credentials(address: str, shown: str) -> None:
    assert without_credentials(address) == shown
    assert SECRET not in shown


@given(
    st.sampled_from(["http", "postgresql", "mongodb", "s3"]),
    st.text(st.characters(codec="utf-8"), max_size=8),
    st.sampled_from(["host", "host:1", "[::1]:80", "[::1", "a,b", ""]),
    st.sampled_from(["", "/", "/path", "?a=b", "#c", "/a@b", "//"]),
    st.booleans(),
)
def test_no_password_is_shown(scheme: str, noise: str, host: str, path: str, quoted: bool) -> None:
    password = f"{noise}{SECRET}{noise}"
    password = quote(password, safe="") if quoted else password
    shown = without_credentials(f"{scheme}://user:{password}@{host}{path}")
    assert SECRET not in shown
    assert "user" not in shown


@given(st.text())
def test_any_text_is_accepted_and_shown_the_same_again(text: str) -> None:
    shown = without_credentials(text)
    assert without_credentials(shown) == shown
