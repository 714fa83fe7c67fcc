"""A password in a setting that takes an address is in no message about that setting."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jobsight.agent.outputs.http import HttpOptions
from jobsight.archive.storage import open_storage
from jobsight.cli.main import main
from jobsight.config.load import load_settings
from jobsight.config.settings import (
    ArchiveSettings,
    LdapSettings,
    MailSettings,
    OidcSettings,
    PromqlSettings,
    PushSettings,
    RemoteWriteSettings,
    S3Settings,
    Settings,
)
from jobsight.config.validate import struct_of, struct_of_table
from jobsight.errors import ConfigError, JobsightError
from jobsight.mail.message import pages_url
from jobsight.sams.import_database import SamsDatabase
from jobsight.sams.settings import read_tree
from jobsight.scheduler.sinks.mongodb import MongoSink
from jobsight.scheduler.sinks.opensearch import OpenSearchSink
from jobsight.server.promql import PromqlSeries
from jobsight.software.rule_file import RulesError, _tree
from jobsight.store.store import Store
from jobsight.transport.client import Address
from jobsight.transport.delivery import HttpTarget
from jobsight.transport.http import Web

SECRET = "hunter2secret"
ADDRESSES = [
    f"http://user:{SECRET}@[::1",
    f"http://user:{SECRET}@host:port",
    f"http://user:{SECRET}@host:99999999",
    f"http://user:{SECRET}/@host",
    f"http://user:{SECRET}@",
    f"ftp://user:{SECRET}@host",
    f"htp:/user:{SECRET}@host",
    f"user:{SECRET}@host:80",
    f"http://{SECRET}@:0",
    f"postgresql://user:{SECRET}@host:port/base",
    f"mongodb://user:{SECRET}/{SECRET}@host",
    f"mongodb://user:{SECRET}@host:99999999",
    f"s3://user:{SECRET}@",
]


def _archive(location: str | None = None, endpoint: str | None = None) -> object:
    return open_storage(
        ArchiveSettings(location=location or "s3://bucket", s3=S3Settings(endpoint=endpoint))
    )


def _store(location: str) -> None:
    if location.startswith(("postgresql:", "s3:", "http:", "ftp:", "mongodb:")):
        Store.open(location).close()


#: What reads each setting that takes an address.
READERS: dict[str, Callable[[str], object]] = {
    "server.url": lambda text: HttpTarget(text, Path("/nonexistent")),
    "server.promql.url": lambda text: PromqlSeries(PromqlSettings(url=text)),
    "server.remote_write.url": lambda text: Web(
        "server.remote_write", RemoteWriteSettings(url=text)
    ),
    "agent.remote_write.url": lambda text: Web("agent", RemoteWriteSettings(url=text)),
    "agent.push.url": lambda text: Web("agent.push", PushSettings(url=text)),
    "scheduler.rest.url": lambda text: Address.parse("scheduler.rest.url", text, unix=True),
    "sinks.mongodb.url": lambda text: MongoSink(text, "clockwork"),
    "sinks.opensearch.url": OpenSearchSink,
    "archive.location": lambda text: _archive(location=text),
    "archive.s3.endpoint": lambda text: _archive(endpoint=text),
    "store.location": _store,
    "mail.url": lambda text: pages_url(MailSettings(url=text)),
    "access.oidc.url": lambda text: OidcSettings(
        issuer="https://login.example.org", client_id="jobsight", url=text
    ),
    "access.ldap.url": lambda text: LdapSettings(
        url=text.replace("http:", "ldap:"), search_base="dc=example,dc=org"
    ),
    "mail.webhook.url": lambda text: Address.parse("mail.webhook.url", text),
}
#: The same for settings of SAMS.
READERS_OF_SAMS: dict[str, Callable[[str], object]] = {
    "sams.output.Http.uri": lambda text: HttpOptions(uri=text, spool="/x"),
    "import": lambda text: closing(SamsDatabase(text)).__enter__(),
}


def _fields(struct: type[msgspec.Struct], path: str = "") -> Iterator[str]:
    for field in msgspec.structs.fields(struct):
        inner = struct_of(field.type)
        if inner is not None:
            yield from _fields(inner, f"{path}{field.name}.")
        elif struct_of_table(field.type) is None:
            yield f"{path}{field.name}"


def test_every_setting_that_takes_an_address_is_tested() -> None:
    named = {name for name in _fields(Settings) if name.endswith(("url", "location", "endpoint"))}
    assert named == set(READERS)


@pytest.mark.parametrize("address", [f"ldap://cn=admin:{SECRET}@host", f"ldaps://{SECRET}@host"])
def test_a_password_in_the_address_of_a_directory_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match="without user name and password") as refused:
        LdapSettings(url=address, search_base="dc=example,dc=org")
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize("setting", [*READERS, *READERS_OF_SAMS])
@pytest.mark.parametrize("address", ADDRESSES)
def test_no_message_about_an_address_has_its_password(
    setting: str, address: str, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    caplog.set_level(logging.DEBUG, "jobsight")
    reader = (READERS | READERS_OF_SAMS)[setting]
    if setting == "import" and "://" not in address:
        return
    if setting == "archive.location" and "://" not in address:
        return
    said = ""
    try:
        reader(address)
    except (JobsightError, OSError) as error:
        # Any other exception would be a traceback.
        said = str(error)
    assert SECRET not in said
    assert SECRET not in caplog.text


def test_the_password_is_in_no_output_of_a_command(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("JOBSIGHT_CONFIG", str(tmp_path / "jobsight.toml"))
    (tmp_path / "jobsight.toml").write_text("")
    monkeypatch.setenv("JOBSIGHT_STORE__LOCATION", f"postgresql://u:{SECRET}@127.0.0.1:1/base")
    monkeypatch.setenv("JOBSIGHT_SERVER__URL", f"https://u:{SECRET}@127.0.0.1:1")
    for command in (["jobs"], ["report", "1"], ["store", "info"], ["scrape", "--once"], ["doctor"]):
        main(command)
        shown = capfd.readouterr()
        assert SECRET not in shown.out + shown.err, command
        assert "Traceback" not in shown.err, command


@pytest.mark.parametrize(
    "text",
    [
        f"store: {{location: postgresql://u:{SECRET}@host, }}}}\n",
        f'sinks: {{mongodb: {{url: "{SECRET}\n',
        f"a: *{SECRET}\n",
        f"password: !{SECRET} x\n",
        f"@{SECRET}\n",
        f"a: b: {SECRET}\n",
        f'"\\q{SECRET}"\n',
    ],
)
def test_a_syntax_error_gives_line_and_column_only(tmp_path: Path, text: str) -> None:
    file = tmp_path / "jobsight.yaml"
    file.write_text(text)
    readers: list[tuple[Callable[[Path], Any], type[Exception]]] = [
        (load_settings, ConfigError),
        (read_tree, ConfigError),
        (_tree, RulesError),
    ]
    for reader, kind in readers:
        with pytest.raises(kind, match=r"jobsight\.yaml: line \d+, column \d+: ") as error:
            reader(file)
        assert SECRET not in str(error.value)
