"""A site's own modules, written for SAMS's base classes, without SAMS and with it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.agent.outputs.conftest import short_folder as short_folder

#: A sampler, an output, a listener and a mapper as sites write them for SAMS.
_SITE = """
import sams.base
from sams.core import Config

class Sampler(sams.base.Sampler):
    def __init__(self, id, outQueue, config):
        super(Sampler, self).__init__(id, outQueue, config)
        self.word = self.config.get([self.id, "word"], "none")
    def sample(self):
        entry = {"processes": len(self.pids), "word": self.word}
        self._most_recent_sample = [self._storage_wrapping(entry)]
        self.store(entry)
    def final_data(self):
        return {"job": self.jobid}

class Output(sams.base.Output):
    def __init__(self, id, config):
        super().__init__(id, config)
        self.data = {}
    def store(self, data):
        self.data.update(data)
    def write(self):
        import json
        with open(self.config.get([self.id, "file"]), "w") as file:
            json.dump(self.data, file)
        return True

class Listener(sams.base.Listener):
    def __init__(self, id, config: Config, samplers):
        super().__init__(id, config, samplers)
    @property
    def encoded_data(self):
        latest = [s.most_recent_sample for s in self.samplers if s.most_recent_sample]
        return str(sorted(m["id"] for messages in latest for m in messages)).encode()

class Software(sams.base.Software):
    def get(self, path):
        return {"software": "word" if "sh" in path else "x", "ignore": "bin/x" in path}
"""

#: Loads the settings as the collector does, and drives the modules by hand.
_DRIVER = """
import json, socket, sys, time
from jobsight.cli.compat.collector import view_of
from jobsight.sams.node.settings import load_sams_settings
before = "sams" in sys.modules
settings = load_sams_settings(sys.argv[1])
view = view_of(42, "n1")
view.usage.members = {1: None, 2: None}
sampler = settings.samplers[0].make(view)
document = sampler.document(view)
output, listener = [plan.factory(view) for plan in settings.outputs]
for each in (output, listener):
    each.store(view, "site_modules", document)
client = socket.socket(socket.AF_UNIX)
while client.connect_ex(listener._part.socket_path):
    # SAMS's own listener starts to listen in its thread.
    time.sleep(0.01)
served = client.recv(4096).decode()
final = {"site_modules": sampler.final(view)}
for each in (output, listener):
    each.write(view, final)
import sams
mapper = settings.samplers[1].make(view)._mapper
print(json.dumps({"before": before, "document": document, "served": served,
                  "sams": sams.__file__ if hasattr(sams, "__file__") else None,
                  "warnings": settings.warnings,
                  "mapped": [mapper("/bin/sh"), mapper("/usr/bin/x")]}))
"""


def _run(
    tmp_path: Path, short_folder: Path, path: list[str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    (tmp_path / "site_modules.py").write_text(_SITE)
    (tmp_path / "sams.yaml").write_text(
        f"""
sams.collector:
  samplers: [site_modules, sams.sampler.Software]
  outputs: [site_modules]
  listeners: [site_modules]
site_modules: {{word: hello, file: {tmp_path}/written.json, socketdir: {short_folder}/s}}
sams.sampler.Software: {{software_mapper: site_modules}}
"""
    )
    done = subprocess.run(
        [sys.executable, "-c", _DRIVER, tmp_path / "sams.yaml"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *path])},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), json.loads((tmp_path / "written.json").read_text())


@pytest.fixture
def installed(sams: Path) -> str:
    (found,) = sams.parent.glob("lib/python*/site-packages")
    return str(found)


# Fault 17: a site's own modules needed SAMS, whose package overwrites our commands.
def test_modules_of_a_site_run_without_sams(tmp_path: Path, short_folder: Path) -> None:
    result, written = _run(tmp_path, short_folder, [])
    assert result["sams"] is None
    check(result, written)


def test_an_installed_sams_takes_precedence(
    tmp_path: Path, short_folder: Path, installed: str
) -> None:
    result, written = _run(tmp_path, short_folder, [installed])
    assert result["sams"].startswith(installed)
    check(result, written)


def check(result: dict[str, Any], written: dict[str, Any]) -> None:
    assert not result["before"]
    assert result["document"] == {"processes": 2, "word": "hello"}
    assert written == {"site_modules": {"job": 42}}
    assert result["served"] == "['site_modules']"
    assert result["mapped"] == ["word", None]
    assert result["warnings"] == []


def test_our_names_are_those_of_sams(installed: str) -> None:
    """Every public class and method of SAMS's base module exists, under its name."""
    code = """
import inspect, json, sys
import sams.base
print(json.dumps({name: sorted(k for k in vars(value) if not k.startswith("__"))
                  for name, value in vars(sams.base).items()
                  if inspect.isclass(value) and value.__module__ == "sams.base"}))
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": installed},
        capture_output=True,
        text=True,
        check=True,
    )
    from jobsight.sams.node import base_classes

    for name, members in json.loads(done.stdout).items():
        ours = getattr(base_classes, name)
        # The loops of SAMS's threads are ours to run.
        for member in set(members) - {"run", "_listen"} - {m for m in members if "abc" in m}:
            assert hasattr(ours, member), f"{name}.{member}"


def test_the_package_has_no_module_sams() -> None:
    source = Path(__file__).parents[3] / "src"
    assert [path.name for path in source.iterdir() if path.name.startswith("sams")] == []
    done = subprocess.run([sys.executable, "-c", "import jobsight, sams"], capture_output=True)
    assert b"No module named 'sams'" in done.stderr


# Fault 17: software_mapper given by name was only noted.
@pytest.mark.parametrize("without_re2", [False, True])
def test_the_rules_of_the_file_name_software(tmp_path: Path, without_re2: bool) -> None:
    (tmp_path / "sams.yaml").write_text(
        """
sams.collector: {samplers: [sams.sampler.Software]}
sams.sampler.Software: {software_mapper: sams.software.Regexp}
sams.software.Regexp:
  rules:
    - match: '^/sw/(?P<name>[^/]+)/(?P<version>[^/]+)/'
      software: '%(name)s'
      version: '%(version)s'
      versionstr: '%(name)s/%(version)s'
    - {match: '^/bin/', software: system, version: '', versionstr: '', ignore: true}
"""
    )
    code = f"""
import json, sys
if {without_re2}:
    sys.modules["re2"] = None
from jobsight.sams.node.settings import load_sams_settings
settings = load_sams_settings(sys.argv[1])
mapper = settings.samplers[0].make(None)._mapper
paths = ["/sw/gromacs/2024/bin/gmx", "/bin/sh", "/home/u/a.out"]
print(json.dumps([settings.warnings, [mapper(path) for path in paths]]))
"""
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "sams.yaml"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout) == [[], ["gromacs", None, None]]


def test_a_mapper_that_cannot_be_loaded_is_a_warning(tmp_path: Path) -> None:
    from jobsight.sams.node.settings import load_sams_settings

    (tmp_path / "sams.yaml").write_text(
        "sams.collector: {samplers: [sams.sampler.Software]}\n"
        "sams.sampler.Software: {software_mapper: no_such_module}\n"
    )
    settings = load_sams_settings(tmp_path / "sams.yaml")
    assert ["software_mapper is not used" in each for each in settings.warnings] == [True]
