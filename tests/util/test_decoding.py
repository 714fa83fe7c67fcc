"""Faults that fuzzing found: each input ended a thread or a command with a traceback."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from jobsight.agent.control import parse_request
from jobsight.config.load import load_settings
from jobsight.config.slurm import slurm_cluster_name
from jobsight.errors import ConfigError
from jobsight.findings.rule_file import parse_rules
from jobsight.mail.queue import MailQueue
from jobsight.sams.settings import load_receiver
from jobsight.transport.delivery import _decoded, _Receipt
from jobsight.transport.running_server import RunningServer
from jobsight.util.decoding import decode_json_as

DEEP = b'{"x":' + b"[" * 100_000
NOT_UTF8 = b'{"url": "\xff", "token_file": "\xff", "pid": 1}'


@pytest.mark.parametrize("data", [DEEP, NOT_UTF8, b"", b"{"])
def test_json_that_others_wrote_raises_one_kind_of_error(data: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_json_as(RunningServer, data)


@pytest.mark.parametrize("data", [DEEP, b'{"do": "\xff"}'])
def test_a_request_on_the_control_socket(data: bytes) -> None:
    with pytest.raises(msgspec.MsgspecError):
        parse_request(data)


def test_the_reply_of_a_proxy() -> None:
    assert _decoded(DEEP, _Receipt) is None
    assert _decoded(b'{"status": "\xff"}', _Receipt) is None


def test_a_mail_request_that_is_nested_is_set_aside(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_bytes(b'{"to":"a","subject":"b","created":1,"x":' + b"[" * 9000)
    queue = MailQueue(tmp_path)
    assert queue.requests() == []
    assert "nested too deeply" in queue.failures()[0][1]


@pytest.mark.parametrize(
    ("name", "text"), [("x.toml", "a = " + "[" * 5000), ("x.yaml", "a: " + "[" * 5000)]
)
def test_settings_that_are_nested(tmp_path: Path, name: str, text: str) -> None:
    file = tmp_path / name
    file.write_text(text)
    with pytest.raises(ConfigError, match="is nested too deeply"):
        load_settings(file, {})


def test_settings_of_sams_that_are_nested(tmp_path: Path) -> None:
    file = tmp_path / "sams.yaml"
    file.write_text("[" * 5000)
    with pytest.raises(ConfigError, match="is nested too deeply"):
        load_receiver(file)


def test_an_include_of_slurm_conf_with_a_zero_byte(tmp_path: Path) -> None:
    file = tmp_path / "slurm.conf"
    file.write_bytes(b"Include a\0b\nClusterName=Alpha\n")
    assert slurm_cluster_name({}, [file]) == "alpha"


def test_a_leading_zero_in_a_condition() -> None:
    text = (
        "rules:\n- name: a-rule\n  title: A title\n  text: A text.\n  severity: notice\n"
        "  help: A help.\n  condition: run.nodes > 007\n"
    )
    # It is read as a number; what is wrong with the rule otherwise is said in a sentence.
    with pytest.raises(Exception, match=r"^a-file:") as caught:
        parse_rules("a-file", text)
    assert "invalid literal" not in str(caught.value)
