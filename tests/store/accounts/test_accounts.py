"""Accounts of people, their sessions and tokens in the store."""

import time
from collections.abc import Callable
from typing import Any

import pytest

from jobsight.errors import JobsightError
from jobsight.model import SECOND
from jobsight.store.accounts.accounts import AccountError, UserAccounts
from jobsight.store.accounts.audit import LISTS_OF_MANY, MANY_USERS, AuditLog
from jobsight.store.accounts.coordinators import coordinated_by, record_coordinators
from jobsight.store.accounts.failures import Limit, count_attempt, limits_end, take_back
from jobsight.store.accounts.preferences import (
    NO_PREFERENCES,
    Preferences,
    read_preferences,
    write_preferences,
)
from jobsight.store.accounts.sessions import MAX_SESSIONS, Sessions
from jobsight.store.accounts.tokens import MAX_LIFETIME, MAX_TOKENS, PREFIX, UserTokens
from jobsight.store.maintenance.retention import remove_expired
from jobsight.store.store import Store

DAY = 86400 * SECOND


@pytest.fixture
def accounts(store: Store) -> UserAccounts:
    made = UserAccounts(store.database)
    made.add("alice", "user", password_hash="hash")
    return made


def _sessions(store: Store, idle: int = DAY, lifetime: int = 7 * DAY) -> Sessions:
    return Sessions(store.database, idle=idle, lifetime=lifetime)


def test_an_account_is_kept_as_it_was_added(accounts: UserAccounts) -> None:
    added = accounts.add("carol", "mentor", accounts=["physics", "chemistry", "physics"])
    assert (added.role, added.accounts, added.origin) == (
        "mentor",
        ("chemistry", "physics"),
        "local",
    )
    assert [account.name for account in accounts.list()] == ["alice", "carol"]
    assert accounts.find("nobody") is None


@pytest.mark.parametrize(
    ("action", "words"),
    [
        (lambda accounts: accounts.add("alice", "staff"), "exists already"),
        (lambda accounts: accounts.add("a b", "user"), "is not a user name"),
        (lambda accounts: accounts.add("", "user"), "is not a user name"),
        (lambda accounts: accounts.add("x" * 65, "user"), "1 to 64"),
        (lambda accounts: accounts.add("../etc", "user"), "is not a user name"),
        (lambda accounts: accounts.set_role("bob", "staff", ()), "there is no user account 'bob'"),
        (lambda accounts: accounts.disable("bob"), "there is no user account 'bob'"),
        (lambda accounts: accounts.add("bob", "mentor", accounts=["a\n"]), "name of an account"),
        (lambda accounts: accounts.add("bob", "mentor", accounts=map(str, range(1001))), "1000"),
    ],
)
def test_what_cannot_be_done_is_said(
    accounts: UserAccounts, action: Callable[[UserAccounts], Any], words: str
) -> None:
    with pytest.raises(AccountError, match=words):
        action(accounts)
    assert accounts.get("alice").role == "user"
    assert accounts.find("bob") is None


def test_another_system_decides_the_role_if_it_names_one(accounts: UserAccounts) -> None:
    assert accounts.sign_in("bob", "oidc", None).role == "user"
    accounts.set_role("bob", "staff", ())
    assert accounts.sign_in("bob", "oidc", None).role == "staff"
    known = accounts.sign_in("bob", "oidc", "mentor", ["physics"])
    assert (known.role, known.accounts) == ("mentor", ("physics",))


def test_a_session_is_found_by_its_cookie_alone(accounts: UserAccounts, store: Store) -> None:
    sessions = _sessions(store)
    value = sessions.open(user="alice", address="::1", user_agent="Browser\n1" * 100, peer_uid=7)
    found = sessions.find(value)
    assert found is not None
    session, account = found
    assert account == accounts.get("alice")
    assert (session.user, session.address, session.peer_uid) == ("alice", "::1", 7)
    assert len(session.user_agent) == 200
    assert session.user_agent.isprintable()
    with store.database.query() as transaction:
        (row,) = transaction.execute("SELECT * FROM sessions").fetchall()
    assert value not in repr(row)
    assert sessions.find(value[:-1]) is None
    assert sessions.find(session.digest.hex()) is None
    sessions.close(session.digest)
    assert sessions.find(value) is None


def test_a_session_ends_when_idle_and_in_any_case(accounts: UserAccounts, store: Store) -> None:
    for idle, lifetime in ((DAY, 1), (1, DAY)):
        sessions = _sessions(store, idle, lifetime)
        value = sessions.open(user="alice")
        assert sessions.find(value) is None
        assert sessions.list("alice") == []


def test_the_last_request_is_recorded_once_a_minute(accounts: UserAccounts, store: Store) -> None:
    sessions = _sessions(store)
    value = sessions.open(user="alice")
    with store.database.write() as transaction:
        transaction.execute("UPDATE sessions SET last_seen = last_seen - 61000000000")
    (old,) = sessions.list("alice")
    sessions.record_use(old)
    (new,) = sessions.list("alice")
    assert new.last_seen >= old.last_seen + 61 * SECOND
    sessions.record_use(new)
    assert sessions.list("alice") == [new]
    assert sessions.find(value) is not None


def test_sessions_of_one_account_are_bounded(accounts: UserAccounts, store: Store) -> None:
    accounts.add("bob", "user")
    sessions = _sessions(store)
    other = sessions.open(user="bob")
    values = [sessions.open(user="alice") for _ in range(MAX_SESSIONS + 2)]
    assert [sessions.find(value) is not None for value in values] == [False] * 2 + [True] * 50
    assert sessions.find(other) is not None
    of_token = [sessions.open(server_token=b"x" * 32) for _ in range(MAX_SESSIONS + 1)]
    assert sessions.find(of_token[0]) is None
    assert sessions.find(of_token[-1]) is not None


@pytest.mark.parametrize(
    "end",
    [
        lambda accounts: accounts.disable("alice"),
        lambda accounts: accounts.set_password("alice", "other"),
    ],
)
def test_sessions_end_with_the_account_and_its_password(
    accounts: UserAccounts, store: Store, end: Callable[[UserAccounts], Any]
) -> None:
    sessions = _sessions(store)
    value = sessions.open(user="alice")
    end(accounts)
    assert sessions.find(value) is None


def test_disabled_and_enabled(accounts: UserAccounts) -> None:
    assert accounts.disable("alice")
    assert not accounts.disable("alice")
    assert accounts.get("alice").disabled is not None
    assert accounts.enable("alice")
    assert not accounts.enable("alice")
    assert accounts.get("alice").disabled is None


def test_a_token_of_a_user(accounts: UserAccounts, store: Store) -> None:
    tokens = UserTokens(store.database)
    row, token = tokens.add("alice", "read", 90 * DAY, "laptop")
    assert token.startswith(PREFIX)
    assert (row.user, row.scope, row.label) == ("alice", "read", "laptop")
    assert tokens.find(token) == (row, accounts.get("alice"))
    with store.database.query() as transaction:
        (stored,) = transaction.execute("SELECT * FROM user_tokens").fetchall()
    assert token not in repr(stored)
    tokens.record_use(row)
    (used,) = tokens.list("alice")
    assert used.used is not None
    with pytest.raises(JobsightError, match="there is no token"):
        tokens.revoke(row.id, "bob")
    assert tokens.revoke(row.id, "alice").refusal(time.time_ns()) is not None
    assert tokens.list("bob") == []


@pytest.mark.parametrize("lifetime", [0, -1, MAX_LIFETIME + 1])
def test_every_token_expires(accounts: UserAccounts, store: Store, lifetime: int) -> None:
    with pytest.raises(AccountError, match="366 days at most"):
        UserTokens(store.database).add("alice", "read", lifetime)


def test_tokens_of_one_account_are_bounded(accounts: UserAccounts, store: Store) -> None:
    tokens = UserTokens(store.database)
    for _ in range(MAX_TOKENS):
        tokens.add("alice", "read", DAY)
    with pytest.raises(AccountError, match="revoke one of them"):
        tokens.add("alice", "read", DAY)
    tokens.revoke(tokens.list()[0].id)
    tokens.add("alice", "read", DAY)
    with pytest.raises(AccountError, match="there is no user account"):
        tokens.add("bob", "read", DAY)


def test_repeated_views_are_counted(store: Store) -> None:
    log = AuditLog(store.database)
    for _ in range(3):
        log.record(user="alice", viewer="carol", subject="/users/alice")
    log.record(user="alice", viewer="", subject="c1:7:1\x1b[0m")
    log.record(user="bob", viewer="carol", subject="/users/bob")
    found = log.views_of("alice", 10)
    assert {(view.viewer, view.count) for view in found} == {("carol", 3), ("", 1)}
    assert all(view.subject.isprintable() and view.first <= view.last for view in found)
    log.record(user="alice", viewer="carol", subject="/users/alice")
    assert {view.count for view in log.views_of("alice", 10)} == {4, 1}
    assert len(log.latest(10)) == 3
    assert len(log.latest(2)) == 2


def test_a_view_of_many_users_is_everybodys(store: Store) -> None:
    log = AuditLog(store.database)
    log.record(user=MANY_USERS, viewer="carol", subject=LISTS_OF_MANY)
    log.record(user="bob", viewer="carol", subject="c1:7:1")
    assert [view.subject for view in log.views_of("alice", 10)] == [LISTS_OF_MANY]
    assert {view.subject for view in log.views_of("bob", 10)} == {LISTS_OF_MANY, "c1:7:1"}


def test_attempts_are_counted_up_to_the_limit_and_taken_back(store: Store) -> None:
    database = store.database
    limits = [Limit(b"own", 2), Limit(b"all", 5)]

    def attempts(count: int) -> list[int]:
        return [count_attempt(database, limits, now=10, window=100) for _ in range(count)]

    assert attempts(3) == [0, 0, 110]
    assert limits_end(database, limits, now=10) == 110
    # What was refused is not counted under the other key either.
    take_back(database, [b"all"], forgotten=[b"own"])
    assert limits_end(database, limits, now=10) == 0
    assert attempts(3) == [0, 0, 110]
    take_back(database, [b"own", b"all"])
    assert attempts(2) == [0, 110]
    # The windows have ended.
    assert limits_end(database, limits, now=110) == 0
    assert count_attempt(database, limits, now=110, window=100) == 0
    take_back(database, [b"own", b"all", b"unknown"])
    with database.query() as transaction:
        assert transaction.execute("SELECT count(*) FROM sign_in_failures").fetchone() == (0,)


def test_what_is_old_is_removed(accounts: UserAccounts, store: Store) -> None:
    log = AuditLog(store.database)
    log.record(user="alice", viewer="carol", subject="/users/alice")
    sessions, tokens = _sessions(store), UserTokens(store.database)
    value = sessions.open(user="alice")
    tokens.add("alice", "read", DAY)
    assert log.latest(10)
    now = time.time_ns()
    remove_expired(store.database, now, 400)
    assert (len(log.latest(10)), len(tokens.list())) == (1, 1)
    assert sessions.find(value) is not None
    remove_expired(store.database, now + 500 * DAY, 0)
    assert (len(log.latest(10)), tokens.list(), sessions.list("alice")) == (1, [], [])
    remove_expired(store.database, now + 500 * DAY, 400)
    assert log.latest(10) == []


def test_preferences(accounts: UserAccounts, store: Store) -> None:
    assert read_preferences(store.database, "alice") == NO_PREFERENCES
    chosen = Preferences(language="fr", rows=100, columns={"jobs": ["state", "user"]})
    for preferences in (Preferences(time_zone="Europe/Paris"), chosen):
        write_preferences(store.database, "alice", preferences)
        assert read_preferences(store.database, "alice") == preferences


def test_a_coordinator_who_was_not_there_at_the_first_scrape(store: Store) -> None:
    assert record_coordinators(store.database, "c1", [], now=10) == 0
    assert record_coordinators(store.database, "c1", [("physics", "anna")], now=20) == 1
    assert record_coordinators(store.database, "c1", [("physics", "anna")], now=30) == 0
    # Two scrapes within one moment of the clock.
    assert record_coordinators(store.database, "c1", [], now=20) == 1
    assert record_coordinators(store.database, "c1", [("physics", "anna")], now=20) == 1
    (found,) = coordinated_by(store.database, "anna")
    assert (found.since, found.until) == (20, None)
    assert record_coordinators(store.database, "c2", [("physics", "anna")], now=40) == 1
    assert [one.since for one in coordinated_by(store.database, "anna")] == [20, 0]
