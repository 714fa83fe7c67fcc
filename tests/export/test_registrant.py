"""Files go to every service, nothing is lost when one is unreachable, and the rest is kept tidy."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

from jobsight.cli.compat.registrant import main
from jobsight.errors import ConfigError
from jobsight.export.registrant import Registered, Registrant, load_registrant
from jobsight.export.usage_records import ReportedSoftware, UsageRecord, to_xml
from tests.export.documents import NAMESPACE
from tests.export.services import Service, running
from tests.sams.front import make_papers

ALL = f"{NAMESPACE}SoftwareAccountingRecords"


@pytest.fixture(scope="module")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("papers")
    make_papers(folder)
    return folder


@pytest.fixture
def service(papers: Path) -> Iterator[Service]:
    with running(papers) as service:
        yield service


@pytest.fixture
def other(papers: Path) -> Iterator[Service]:
    with running(papers) as service:
        yield service


class Site:
    """The directories and the file of a site."""

    def __init__(self, folder: Path, papers: Path) -> None:
        self.folder = folder
        self.config = folder / "registrant.conf"
        self.papers = papers
        (folder / "records").mkdir()

    def configure(self, *services: Service, paper: str = "node", more: str = "") -> Path:
        addresses = " ".join(service.address for service in services)
        self.config.write_text(
            f"[common]\nx509_user_key={self.papers}/{paper}.key\n"
            f"x509_user_cert={self.papers}/{paper}.pem\nx509_cert_dir={self.papers}/ca.pem\n"
            f'log_dir={self.folder}\nrecords_directory="records"\n'
            f"[logger]\nlog_all={addresses}\nregistrant_logfile={self.folder}/log\n{more}"
        )
        return self.config

    def run(self, *services: Service, paper: str = "node", more: str = "") -> Registered:
        return Registrant(load_registrant(self.configure(*services, paper=paper, more=more))).run()

    def put(self, *numbers: int) -> None:
        for number in numbers:
            software = ReportedSoftware("R&D", "1", "", False, "100.00")
            record = UsageRecord(f"c:{number}", [software])
            (self.folder / "records" / f"c-{number}.xml").write_bytes(to_xml([record], 0))

    def names(self, folder: str) -> list[str]:
        return sorted(file.name for file in (self.folder / folder).iterdir())


@pytest.fixture
def site(tmp_path: Path, papers: Path) -> Site:
    return Site(tmp_path, papers)


def received(service: Service) -> list[list[str]]:
    """The ids of the records in each post."""
    found = []
    for document in service.documents:
        root = ElementTree.fromstring(document)
        assert root.tag == ALL
        assert {child.tag for child in root} == {ALL}
        found.append([record[1].text or "" for file in root for record in file])
    return found


def test_files_are_posted_with_the_certificate_and_archived(site: Site, service: Service) -> None:
    site.put(1, 2, 3)
    done = site.run(service, more="batch_size=2\n")
    assert done == Registered(sent=3, archived=3)
    assert received(service) == [["c:1", "c:2"], ["c:3"]]
    assert service.clients == {"node"}
    assert site.names("records") == site.names("state") == []
    assert site.names("archive") == ["c-1.xml", "c-2.xml", "c-3.xml"]
    assert site.run(service) == Registered()


def test_each_service_gets_each_file_once(site: Site, service: Service, other: Service) -> None:
    site.put(1, 2)
    other.status = 500
    assert site.run(service, other) == Registered(sent=2, left=2)
    assert site.names("records") == site.names("state") == ["c-1.xml", "c-2.xml"]
    assert (site.folder / "state" / "c-1.xml").read_text() == f"{service.address}\n"
    other.status = 200
    assert site.run(service, other) == Registered(sent=2, archived=2)
    assert received(service) == received(other) == [["c:1"], ["c:2"]]


def test_a_failure_ends_the_call_for_that_service_only(
    site: Site, service: Service, other: Service
) -> None:
    site.put(1, 2, 3)
    service.statuses = {1: 503}
    assert site.run(service, other) == Registered(sent=4, archived=1, left=2)
    assert received(service) == [["c:1"], ["c:2"]]
    assert site.run(service, other) == Registered(sent=2, archived=2)
    assert received(service)[2:] == [["c:2"], ["c:3"]]
    assert received(other) == [["c:1"], ["c:2"], ["c:3"]]


def test_a_file_that_is_refused_does_not_hold_up_the_others(site: Site, service: Service) -> None:
    site.put(1, 2)
    service.statuses = {0: 400}
    assert site.run(service) == Registered(sent=1, archived=1, left=1)
    assert site.names("records") == ["c-1.xml"]


@pytest.mark.parametrize("fault", ["away", "silent", "slow", "no list", "no service", "stranger"])
def test_what_a_service_cannot_take_now_is_kept(
    site: Site, service: Service, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    site.put(1)
    target, paper = service, "node"
    held = socket.create_server(("127.0.0.1", 0), backlog=1)
    away = Service(type("Nobody", (), {"server_address": held.getsockname()})())
    if fault == "away":
        held.close()
        target = away
    elif fault == "silent":
        target = away
    elif fault == "slow":
        service.delay = 1.0
    elif fault == "no list":
        service.href = "<"
    elif fault == "no service":
        service.href = "http://127.0.0.1/in-the-clear"
    else:
        paper = "stranger"
    done = site.run(target, paper=paper, more="timeout=0.3,0.3\n")
    held.close()
    assert done == Registered(left=1)
    assert site.names("records") == ["c-1.xml"]
    assert "sent next time" in caplog.text
    service.delay, service.href = 0.0, f"{service.address.removesuffix('/sgas')}/register"
    assert site.run(service) == Registered(sent=1, archived=1)


def test_a_service_of_another_authority_gets_nothing(site: Site, service: Service) -> None:
    site.put(1)
    config = site.configure(service)
    config.write_text(config.read_text().replace("/ca.pem", "/stranger.pem"))
    assert Registrant(load_registrant(config)).run() == Registered(left=1)
    assert service.documents == []


def test_authorities_by_their_hashes(site: Site, service: Service) -> None:
    """As /etc/grid-security/certificates has them."""
    folder = site.folder / "certificates"
    folder.mkdir()
    (folder / "ca.pem").write_bytes((site.papers / "ca.pem").read_bytes())
    assert os.spawnlp(os.P_WAIT, "openssl", "openssl", "rehash", str(folder)) == 0
    site.put(1)
    config = site.configure(service)
    config.write_text(config.read_text().replace(f"{site.papers}/ca.pem", str(folder)))
    assert Registrant(load_registrant(config)).run() == Registered(sent=1, archived=1)


def test_half_written_and_broken_files_stay(site: Site, service: Service) -> None:
    site.put(1)
    (site.folder / "records" / ".c-2.xml.new").write_text("<half")
    (site.folder / "records" / "c-3.xml").write_text("<broken")
    (site.folder / "records" / "folder").mkdir()
    assert site.run(service) == Registered(sent=1, archived=1, unreadable=1)
    assert site.names("records") == [".c-2.xml.new", "c-3.xml", "folder"]


def test_a_call_that_was_killed_is_finished(site: Site, service: Service) -> None:
    site.put(1, 2)
    (site.folder / "state").mkdir()
    (site.folder / "archive").mkdir()
    # Killed after the answers, and after an earlier file was moved.
    (site.folder / "state" / "c-1.xml").write_text(f"{service.address}\n")
    (site.folder / "state" / "c-2.xml").write_text(f"{service.address}\n")
    (site.folder / "state" / "c-0.xml").write_text(f"{service.address}\n")
    assert site.run(service) == Registered(archived=2)
    assert service.documents == []
    assert site.names("archive") == ["c-1.xml", "c-2.xml"]
    assert site.names("state") == site.names("records") == []


def test_the_archive_keeps_both_of_a_name_and_forgets_the_old(site: Site, service: Service) -> None:
    for _ in range(2):
        site.put(1)
        site.run(service)
    assert site.names("archive") == ["c-1.xml", "c-1.xml.2"]
    settings = load_registrant(site.configure(service, more="record_lifetime=2\n"))
    later = Registrant(settings, clock=lambda: time.time() + 2 * 86400 + 60)
    assert later.run() == Registered(removed=2)
    assert site.names("archive") == []


def test_records_of_an_organisation_go_to_its_service_too(
    site: Site, service: Service, other: Service
) -> None:
    site.put(1, 2)
    file = site.folder / "records" / "c-2.xml"
    member = "<sa:UserIdentity><sa:VO><sa:Name>bio</sa:Name></sa:VO></sa:UserIdentity>"
    text = file.read_text().replace("</sa:SoftwareAccountingRecord>", member + "\n"
                                    "</sa:SoftwareAccountingRecord>")  # fmt: skip
    file.write_text(text)
    more = f"log_vo=bio {other.address}, geo {other.address}x\n"
    assert site.run(service, more=more) == Registered(sent=3, archived=2)
    assert received(other) == [["c:2"]]


def test_the_command_says_how_it_went(
    site: Site, service: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    site.put(1)
    config = str(site.configure(service, more="batchsize=2\n"))
    assert main(["-c", config]) == 0
    assert "[logger] batchsize: unknown key; did you mean batch_size?" in capsys.readouterr().err
    assert (
        "1 files sent, 1 archived, 0 old ones removed, 0 left" in (site.folder / "log").read_text()
    )
    site.put(2)
    service.status = 500
    assert main(["--config-file", config, "--stdout"]) == 1
    assert "answers 500" in capsys.readouterr().out


WRONG = [
    ("log_all=", "#log_all=", "log_all: no endpoint"),
    ("log_all=https", "log_all=ftp", "is not an address; expected https://HOST"),
    (
        "[logger]",
        "[logger]\ntimeout=soon",
        "timeout: 'soon' is not a pair of seconds",
    ),
    ("[logger]", "[logger]\nbatch_size=0", "[logger] batch_size: expected `int` >= 1, got '0'"),
    ("[logger]", "[logger]\nlog_vo=bio", "log_vo: 'bio' is not a pair"),
    ("[logger]", "[logger]\nloglevel=LOUD", "there is no log level 'LOUD'"),
    ("[common]", "common", "File contains no section headers"),
]


@pytest.mark.parametrize(("old", "new", "sentence"), WRONG)
def test_a_wrong_file_is_one_line(
    site: Site, service: Service, old: str, new: str, sentence: str
) -> None:
    config = site.configure(service)
    config.write_text(config.read_text().replace(old, new))
    with pytest.raises(ConfigError) as error:
        load_registrant(config)
    assert sentence in str(error.value)
    assert str(error.value).startswith(f"{config}: ")
    assert "\n" not in str(error.value)


def test_papers_that_cannot_be_used_are_named(site: Site, service: Service) -> None:
    site.put(1)
    with pytest.raises(ConfigError, match=r"x509_user_cert: .*none\.pem cannot be read"):
        site.run(service, paper="none")
