"""The order in which a server starts its parts."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from jobsight.config.settings import ServerSettings, Settings, SoftwareSettings, StoreSettings
from jobsight.server import serve
from jobsight.server.serve import BackgroundServer
from jobsight.software import regex, worker
from jobsight.store.store import Store

#: As :mod:`jobsight.util.workers` names them.
_SOFTWARE = "jobsight-software"


def _threads() -> list[str]:
    return [thread.name for thread in threading.enumerate()]


def test_no_thread_changes_the_filters_of_warnings_while_routes_are_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FastAPI ignores a warning of pydantic while it makes a route; the filters are those of the
    process, and a thread that restores its own makes the warning visible, or an error."""
    running: list[list[str]] = []
    create = serve.create_app

    def recording(*arguments: object, **named: object) -> object:
        running.append(_threads())
        return create(*arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(serve, "create_app", recording)
    settings = Settings(
        cluster="c1",
        store=StoreSettings(location=str(tmp_path / "store.db")),
        server=ServerSettings(port=0),
    )
    with BackgroundServer(settings):
        assert _SOFTWARE in _threads()
    assert len(running) == 1
    assert _SOFTWARE not in running[0]


def test_rules_are_compiled_by_the_thread_that_starts_the_server(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiling: set[int] = set()
    compile_pattern = regex.Pattern.__init__

    def recording(self: regex.Pattern, text: str) -> None:
        compiling.add(threading.get_ident())
        compile_pattern(self, text)

    monkeypatch.setattr(regex.Pattern, "__init__", recording)
    rounds = threading.Event()
    once = worker.Worker.once

    def counting(self: worker.Worker, *arguments: object) -> object:
        try:
            return once(self, *arguments)  # type: ignore[arg-type]
        finally:
            rounds.set()

    monkeypatch.setattr(worker.Worker, "once", counting)
    with worker.updating(store, SoftwareSettings()):
        assert rounds.wait(60)
    assert compiling == {threading.get_ident()}
