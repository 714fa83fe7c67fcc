"""Who may see what, and that every route of a report asks."""

import pytest
from fastapi import HTTPException
from starlette.requests import Request
from starlette.testclient import TestClient

from jobsight.server import policy
from jobsight.server.policy import NOBODY, SERVER_TOKEN, VIEWER_IN_SCOPE, Job, User, may_see

SUBJECTS = (Job(user="alice", account="physics", cluster="alpha"), User("alice"))


@pytest.mark.parametrize("subject", SUBJECTS)
def test_only_the_servers_token_sees_anything(subject: policy.Subject) -> None:
    assert may_see(SERVER_TOKEN, subject)
    assert not may_see(NOBODY, subject)


def test_a_request_without_a_viewer_is_nobodys() -> None:
    scope = {"type": "http", "headers": []}
    for given in ({}, {VIEWER_IN_SCOPE: "alice"}, {VIEWER_IN_SCOPE: None}):
        with pytest.raises(HTTPException) as refused:
            policy.require(Request(scope | given), SUBJECTS[0])
        assert refused.value.status_code == 403
    policy.require(Request(scope | {VIEWER_IN_SCOPE: SERVER_TOKEN}), SUBJECTS[0])


FILES = ("report.pdf", "report.html", "plots/cpu.svg")


@pytest.mark.parametrize("file", FILES)
def test_every_file_of_a_job_asks(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    asked = []

    def refuse(viewer: policy.Viewer, subject: policy.Subject) -> bool:
        asked.append((viewer, subject))
        return False

    monkeypatch.setattr(policy, "may_see", refuse)
    reply = client.get(f"/api/v1/jobs/12/{file}")
    assert reply.status_code == 403
    assert reply.json() == {"error": "your credentials do not permit to see this job"}
    assert asked == [(SERVER_TOKEN, SUBJECTS[0])]


@pytest.mark.parametrize("file", FILES)
def test_no_file_without_a_token(stranger: TestClient, file: str) -> None:
    stranger.headers.pop("Authorization", None)
    assert stranger.get(f"/api/v1/jobs/12/{file}").status_code == 401
