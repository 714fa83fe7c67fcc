"""Who may see what."""

import pytest
from fastapi import HTTPException
from starlette.requests import Request

from jobsight.access.policy import Account, Job, Site, Subject, User, may_see, not_found, require
from jobsight.access.viewer import NOBODY, SERVER_TOKEN, VIEWER_IN_SCOPE, Role, Viewer
from jobsight.store.read.visibility import EVERYTHING, Visibility, VisibleAccount, VisibleUser

JOB = Job(user="alice", account="physics", cluster="alpha", start=50)
SUBJECTS = (JOB, User("alice"), Account("physics"), Site())

ALICE = Viewer(name="alice", role=Role.USER, visibility=Visibility(users=(VisibleUser("alice"),)))
BOB = Viewer(name="bob", role=Role.USER, visibility=Visibility(users=(VisibleUser("bob"),)))
HEAD = Viewer(
    name="bob",
    role=Role.COORDINATOR,
    visibility=Visibility(accounts=(VisibleAccount("physics", since=40, until=60),)),
)
STAFF = Viewer(name="carol", role=Role.STAFF, visibility=EVERYTHING)
AUDITOR = Viewer(name="dan", role=Role.AUDITOR, visibility=EVERYTHING, pseudonyms=True)


@pytest.mark.parametrize(
    ("viewer", "seen"),
    [
        (NOBODY, ()),
        (SERVER_TOKEN, SUBJECTS),
        (STAFF, SUBJECTS),
        (AUDITOR, SUBJECTS[:1]),
        (ALICE, (JOB, User("alice"))),
        (BOB, ()),
        (HEAD, (JOB, Account("physics"))),
    ],
)
def test_each_role_sees_its_subjects(viewer: Viewer, seen: tuple[Subject, ...]) -> None:
    assert tuple(subject for subject in SUBJECTS if may_see(viewer, subject)) == seen


@pytest.mark.parametrize(("start", "expected"), [(39, False), (40, True), (60, False)])
def test_an_account_is_seen_as_of_the_time_of_the_job(start: int, expected: bool) -> None:
    assert may_see(HEAD, Job("alice", "physics", "alpha", start)) is expected


@pytest.mark.parametrize("subject", SUBJECTS)
def test_a_request_without_a_viewer_is_nobodys(subject: Subject) -> None:
    scope = {"type": "http", "headers": []}
    for given in ({}, {VIEWER_IN_SCOPE: "alice"}, {VIEWER_IN_SCOPE: None}):
        with pytest.raises(HTTPException) as refused:
            require(Request(scope | given), subject)
        assert (refused.value.status_code, refused.value.detail) == (404, not_found(subject))
    require(Request(scope | {VIEWER_IN_SCOPE: SERVER_TOKEN}), subject)
