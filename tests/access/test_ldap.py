"""Sign-in with the password of a directory: a real slapd."""

from collections.abc import Iterator

import pytest

from jobsight.access.ldap import Directory, LdapError
from jobsight.config.settings import LdapSettings
from jobsight.errors import ConfigError
from tests.access import directory
from tests.access.directory import PASSWORD, SERVICE, SUFFIX, Running
from tests.ports import free_port

pytestmark = [
    pytest.mark.server,
    pytest.mark.skipif(not directory.is_installed(), reason="no slapd; apt-get install slapd"),
]


@pytest.fixture(scope="module")
def ldap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with directory.running(tmp_path_factory.mktemp("ldap")) as running:
        yield running


def by_template(ldap: Running, **changes: object) -> Directory:
    values: dict[str, object] = {
        "url": ldap.plain,
        "ca": ldap.authority,
        "bind_template": f"uid={{user}},ou=people,{SUFFIX}",
        "group_base": f"ou=groups,{SUFFIX}",
    }
    return Directory(LdapSettings(**(values | changes)))  # type: ignore[arg-type]


def test_a_password_is_verified_and_groups_are_read(ldap: Running) -> None:
    for url in (ldap.plain, ldap.tls):
        found = by_template(ldap, url=url)
        carol = found.authenticate("carol", PASSWORD)
        assert carol is not None
        assert sorted(carol.groups) == ["hpc-audit", "hpc-staff"]
        alice = found.authenticate("alice", PASSWORD)
        assert (alice is not None and alice.groups) == ()


@pytest.mark.parametrize(
    ("name", "password"),
    [
        ("alice", "wrong"),
        # An empty password would be an anonymous bind, which succeeds.
        ("alice", ""),
        ("nobody", PASSWORD),
        ("", PASSWORD),
        ("*", PASSWORD),
        ("alice,ou=people", PASSWORD),
        ("alice)(uid=*", PASSWORD),
        ("alice\0", PASSWORD),
        ("alicë", PASSWORD),
    ],
)
def test_what_is_refused(ldap: Running, tmp_path: object, name: str, password: str) -> None:
    assert by_template(ldap).authenticate(name, password) is None


def test_search_and_bind(ldap: Running, tmp_path_factory: pytest.TempPathFactory) -> None:
    file = tmp_path_factory.mktemp("secret") / "password"
    file.write_text("service password\n")
    settings = {
        "bind_template": None,
        "search_base": f"ou=people,{SUFFIX}",
        "bind_dn": SERVICE,
        "bind_password_file": str(file),
    }
    found = by_template(ldap, **settings)
    carol = found.authenticate("carol", PASSWORD)
    assert carol is not None
    assert carol.dn == f"uid=carol,ou=people,{SUFFIX}"
    assert sorted(carol.groups) == ["hpc-audit", "hpc-staff"]
    for name in ("*", "c*", "carol)(uid=alice", "nobody"):
        assert found.authenticate(name, PASSWORD) is None
    # Two entries have the same answer: nobody can say which of them signs in.
    two = by_template(ldap, **settings, search_filter="(|(uid={user})(uid=alice))")
    assert two.authenticate("carol", PASSWORD) is None
    file.write_text("wrong\n")
    with pytest.raises(LdapError, match="refuses access"):
        by_template(ldap, **settings).authenticate("carol", PASSWORD)


def test_a_directory_that_fails_is_an_error_and_no_refusal(ldap: Running) -> None:
    away = by_template(ldap, url=f"ldap://127.0.0.1:{free_port()}", timeout=1)
    with pytest.raises(LdapError, match="failed"):
        away.authenticate("alice", PASSWORD)
    # A certificate of nobody we trust; the password is not sent.
    with pytest.raises(LdapError):
        by_template(ldap, ca=None).authenticate("alice", PASSWORD)
    with pytest.raises(LdapError):
        by_template(ldap, ca=None, url=ldap.tls).authenticate("alice", PASSWORD)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"url": "http://x"}, "url: expected ldaps://HOST"),
        ({"url": "ldap://x"}, "either bind_template or search_base"),
        ({"url": "ldap://x", "bind_template": "uid=x"}, "expected a DN with {user}"),
        (
            {"url": "ldap://x", "search_base": "a", "bind_dn": "b"},
            "bind_password_file: is required with bind_dn",
        ),
        (
            {"url": "ldap://x", "search_base": "a", "roles": {"g": "staff"}},
            "roles: need group_base",
        ),
        (
            {"url": "ldap://x", "search_base": "a", "only_groups": True},
            "only_groups: needs roles",
        ),
        ({"url": "ldap://x", "search_base": "a", "search_filter": "(uid=x)"}, "filter with {user}"),
    ],
)
def test_wrong_settings(values: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        LdapSettings(**values)  # type: ignore[arg-type]
