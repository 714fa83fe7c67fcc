"""Asks a running server of this user, where the store itself may not be read."""

from __future__ import annotations

import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from jobsight.errors import JobsightError, StoreError
from jobsight.reports.report import JobReport
from jobsight.transport.running_server import RunningServer, read_running_server, read_token

_LIMIT = 10.0


class _Row(msgspec.Struct):
    run: str


class _Rows(msgspec.Struct):
    jobs: list[_Row]


def fetch_report(file: Path, wanted: str | None, user: str) -> JobReport | None:
    """The report from the server of a record file; None where no server runs."""
    record = read_running_server(file)
    if record is None:
        return None
    token = read_token(Path(record.token_file))
    if wanted is None:
        query = urllib.parse.urlencode({"user": user, "limit": 1})
        rows = _get(record, f"/api/v1/jobs?{query}", token, _Rows).jobs
        if not rows:
            raise StoreError(f"the server {record.url} has no job of {user}")
        wanted = rows[0].run
    return _get(record, f"/api/v1/jobs/{urllib.parse.quote(wanted)}", token, JobReport)


_Reply = TypeVar("_Reply")


def _get(record: RunningServer, path: str, token: str, kind: type[_Reply]) -> _Reply:
    url = record.url + path
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
    # No proxy: the server is on this machine, and its token must not leave it.
    handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
    if record.certificate is not None:
        from jobsight.transport.tls import ClientTls

        context = ClientTls(record.certificate, pinned=True).context
        handlers.append(urllib.request.HTTPSHandler(context=context))
    opener = urllib.request.build_opener(*handlers)
    try:
        with opener.open(request, timeout=_LIMIT) as reply:
            return msgspec.json.decode(reply.read(), type=kind)
    except urllib.error.HTTPError as error:
        raise StoreError(_sentence(error)) from None
    except (OSError, msgspec.DecodeError) as error:
        reason: Any = getattr(error, "reason", None) or error
        raise JobsightError(f"the server at {url} cannot be asked: {reason}") from None


def _sentence(error: urllib.error.HTTPError) -> str:
    try:
        return str(msgspec.json.decode(error.read(), type=dict[str, str])["error"])
    except (msgspec.DecodeError, KeyError, OSError):
        return f"the server answered {error.code} {error.reason}"
