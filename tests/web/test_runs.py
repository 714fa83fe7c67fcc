"""The list of runs, as the server renders it."""

from __future__ import annotations

from pathlib import Path

import pytest
from starlette.testclient import TestClient

from jobsight.model import Run
from jobsight.server.app import create_app
from jobsight.store.store import Store
from tests.web.conftest import TOKEN
from tests.web.document import Document
from tests.web.sample import HOSTILE


def page(client: TestClient, address: str = "/") -> Document:
    answer = client.get(address)
    assert answer.status_code == 200
    return Document(answer.text)


def linked(document: Document) -> list[str]:
    return [
        link["href"] or "" for link in document.all("a") if "run-id" in (link.get("class") or "")
    ]


def test_the_newest_come_first_with_their_figures(client: TestClient, runs: dict[str, Run]) -> None:
    document = page(client)
    assert linked(document)[0] == f"/jobs/{runs['train-model']}"
    assert len(linked(document)) == 50
    for text in ("59 runs", "62_3", "Ended: out of memory", "lammps-melt", "16.0 GiB of 16.0 GiB"):
        assert text in document.text
    times = document.all("time")
    assert times[0]["datetime"] == "2026-11-15T04:31:37Z"
    assert any(row.get("class") == "running" for row in document.all("tr"))


def test_pages_of_the_list_join_without_gap(client: TestClient) -> None:
    first = page(client)
    older = next(link["href"] for link in first.all("a") if link.get("rel") == "next")
    second = page(client, f"/{older}")
    assert len(linked(first)) + len(linked(second)) == 59
    assert not set(linked(first)) & set(linked(second))
    assert "51 to 59 of 59" in second.text
    assert any(link.get("rel") == "prev" for link in second.all("a"))
    assert "This page of the list is empty" in page(client, "/?offset=5000").text


# Fault 21: the page showed an empty list.
def test_an_unknown_state_is_refused_with_the_names(client: TestClient) -> None:
    reply = client.get("/?state=FAILD")
    assert reply.status_code == 422
    assert "did you mean FAILED?" in Document(reply.text).text
    assert "OUT_OF_MEMORY" in Document(reply.text).text
    document = page(client, "/?state=completed")
    assert [each["value"] for each in document.all("option") if "selected" in each] == ["COMPLETED"]
    assert linked(document) == linked(page(client, "/?state=COMPLETED"))
    assert linked(page(client, "/?state=+")) == linked(page(client))


def test_filters_are_kept_in_the_form_and_the_links(client: TestClient) -> None:
    document = page(client, "/?search=sweep&user=ada&state=COMPLETED")
    assert "50 runs found" in document.text
    fields = {field.get("name"): field.get("value") for field in document.all("input")}
    assert fields == {"search": "sweep", "user": "ada"}
    assert [each["value"] for each in document.all("option") if "selected" in each] == ["COMPLETED"]
    assert linked(page(client, "/?state=OUT_OF_MEMORY")) != []


def test_no_match_and_no_run_at_all_say_what_to_do(client: TestClient, tmp_path: Path) -> None:
    assert "No run matches." in page(client, "/?search=nothing-has-this-name").text
    with Store.open(tmp_path / "empty.db") as empty:
        other = TestClient(create_app(empty, TOKEN, delay=0), base_url="http://127.0.0.1")
        other.headers["Authorization"] = f"Bearer {TOKEN}"
        assert "jobsight run -- COMMAND" in page(other).text


@pytest.mark.parametrize("field", ["search", "user", "state"])
def test_what_is_typed_into_the_filter_stays_text(client: TestClient, field: str) -> None:
    answer = client.get("/", params={field: HOSTILE})
    assert answer.status_code == (422 if field == "state" else 200)
    assert "<script>alert" not in answer.text
    Document(answer.text)
    if field != "state":
        fields = {
            each.get("name"): each.get("value") for each in Document(answer.text).all("input")
        }
        assert fields[field] == HOSTILE


def test_wrong_parameters_are_told_in_a_page(client: TestClient) -> None:
    answer = client.get("/?offset=-1")
    assert answer.status_code == 422
    assert "Offset: Input should be" in Document(answer.text).text
