"""SAMS's YAML: what loads, what is warned of, and what is refused in one sentence."""

from pathlib import Path

import pytest

from jobsight.cli.compat.collector import view_of
from jobsight.errors import ConfigError
from jobsight.sams.node.settings import SamsSettings, load_sams_settings

#: As SAMS documents it.
DOCUMENTED = """---
sams-collector:
  pid_finder_update_interval: 30
  pid_finder: sams.pidfinder.Slurm
  samplers:
    - sams.sampler.Core
    - sams.sampler.Software
    - sams.sampler.SlurmInfo
  outputs:
    - sams.output.File

  umask: '077' # only used in daemon mode.
  logfile: /var/log/sams-collector.%(jobid)s.%(node)s.log
  loglevel: ERROR

sams.pidfinder.Slurm:
  grace_period: 600

sams.sampler.SlurmInfo:
  sampler_interval: 30

sams.sampler.Software:
  sampler_interval: 30

sams.output.File:
  base_path: /var/spool/softwareaccounting/data
  file_pattern: "%(jobid)s.%(node)s.json"
  jobid_hash_size: 1000
"""


@pytest.fixture
def load(tmp_path: Path):  # type: ignore[no-untyped-def]
    def from_text(text: str) -> SamsSettings:
        file = tmp_path / "sams.yaml"
        file.write_text(text)
        return load_sams_settings(file)

    return from_text


def test_the_seeds_own_example(load) -> None:  # type: ignore[no-untyped-def]
    settings = load(DOCUMENTED)
    assert settings.warnings == []
    assert [(plan.name, plan.interval) for plan in settings.samplers] == [
        ("sams.sampler.Core", 60.0),
        ("sams.sampler.Software", 30.0),
        ("sams.sampler.SlurmInfo", 30.0),
    ]
    assert settings.pid_finder_update_interval == 30
    assert settings.grace_period == 600
    assert settings.umask == 0o077
    assert settings.loglevel == "ERROR"
    (output,) = settings.outputs
    assert (output.retry_count, output.retry_sleep) == (3, 3.0)
    made = output.factory(view_of(1, "n1"))
    assert made.name == "sams.output.File"
    assert made.options.jobid_hash_size == 1000  # type: ignore[attr-defined]


def test_the_dotted_section_wins(load) -> None:  # type: ignore[no-untyped-def]
    settings = load("sams-collector: {loglevel: DEBUG}\nsams.collector: {loglevel: INFO}\n")
    assert settings.loglevel == "INFO"
    assert "sams-collector: is ignored, because there is also a section" in settings.warnings[0]


def test_0_is_a_value(load) -> None:  # type: ignore[no-untyped-def]
    settings = load(
        """
sams.collector: {samplers: [sams.sampler.Core], outputs: [sams.output.File], umask: 0}
sams.pidfinder.Slurm: {grace_period: 0}
sams.sampler.Core: {sampler_interval: 0}
sams.output.File: {jobid_hash_size: 0, retry_count: 0, retry_sleep: 0, write_as_uid: 0}
"""
    )
    assert settings.grace_period == 0
    assert settings.umask == 0
    assert settings.samplers[0].interval == 0
    assert settings.outputs[0][2:] == (0, 0.0)
    assert settings.outputs[0].factory(view_of(1, "n")).options.write_as_uid == 0  # type: ignore[attr-defined]


@pytest.mark.parametrize("text", ["'077'", "077", "77", "'77'", "0o77"])
def test_a_umask_is_octal_however_it_is_written(load, text: str) -> None:  # type: ignore[no-untyped-def]
    assert load(f"sams.collector:\n  umask: {text}\n").umask == 0o077


def test_common_is_the_last_resort(load) -> None:  # type: ignore[no-untyped-def]
    settings = load("common: {logfile: /a, loglevel: info}\nsams.collector: {}\n")
    assert (settings.logfile, settings.loglevel) == ("/a", "INFO")
    settings = load("common: {logfile: /a, loglevel: info}\nsams.collector: {logfile: /b}\n")
    assert (settings.logfile, settings.loglevel) == ("/b", "INFO")


def test_unknown_keys_are_warned_of(load) -> None:  # type: ignore[no-untyped-def]
    settings = load(
        """
sams.collector: {samplers: [sams.sampler.Core], outputs: [sams.output.File], umsk: '022'}
sams.sampler.Core: {sampler_intervall: 5}
sams.output.File: {bas_path: /x, whatever: 1}
sams.output.Fil: {}
sams.sampler.Software: {sampler_interval: 5}
sams.aggregator: {loaders: []}
sams.loader.File: {in_path: /x}
sams.software.Regexp: {rules: []}
"""
    )
    said = [text.partition(": ")[2] for text in settings.warnings]
    assert said == [
        "unknown key sams.collector.umsk; did you mean sams.collector.umask?",
        "unknown key sams.sampler.Core.sampler_intervall; "
        "did you mean sams.sampler.Core.sampler_interval?",
        "unknown key sams.output.File.bas_path; did you mean sams.output.File.base_path?",
        said[3],
        "sams.output.Fil: unknown section; did you mean sams.output.File?",
    ]
    assert said[3].startswith("unknown key sams.output.File.whatever; valid here: base_path, ")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("sams.collector: []", r"sams\.collector: expected keys and values, got `list`"),
        ("sams.collectr: {}", "no section sams.collector; did you mean sams.collectr"),
        ("- a", "contains no sections; expected sams.collector"),
        ("a: [", "sams.yaml: line 1, column 5: "),
        ("sams.collector: {samplers: x}", r"sams\.collector\.samplers: expected `array`"),
        ("sams.collector: {samplers: [1]}", r"sams\.collector\.samplers: expected `str`"),
        ("sams.collector: {umask: '9'}", "'9' is not a umask; expected an octal number"),
        ("sams.collector: {loglevel: LOUD}", "no log level 'LOUD'; expected CRITICAL, ERROR"),
        ("sams.collector: {logformat: '%(nosuch)s'}", "logformat: .* cannot be used"),
        (
            "sams.collector: {outputs: [sams.output.Fil]}",
            r"no output named 'sams.output.Fil'; did you mean sams.output.File\? valid names: "
            r"sams\.output\.Carbon, sams\.output\.Collectd, sams\.output\.File",
        ),
        (
            "sams.collector: {samplers: [nosuch]}",
            r"no sampler named 'nosuch'; valid names: sams\.sampler\.Core, .*class Sampler",
        ),
        ("sams.collector: {pid_finder: x}", r"valid names: sams\.pidfinder\.Slurm"),
        (
            "sams.collector: {outputs: [sams.output.File]}\n"
            "sams.output.File: {jobid_hash_size: many}",
            r"sams\.output\.File\.jobid_hash_size: expected `int | null`, got `str`",
        ),
        (
            "sams.collector: {outputs: [sams.output.File]}\nsams.output.File: {base_path: 5}",
            r"base_path: expected `str`, got `int`; expected the value in quotes, '5'",
        ),
        ("sams.collector: {outputs: [sams.output.Http]}", r"sams\.output\.Http\.uri: is missing"),
        (
            "sams.collector: {outputs: [sams.output.Prometheus]}\n"
            "sams.output.Prometheus: {metrics: {x: '%(y)s'}}",
            r"sams\.output\.Prometheus\.metrics\.x: %\(y\)s .* is not known",
        ),
        (
            "sams.collector: {samplers: [sams.sampler.Core]}\n"
            "sams.sampler.Core: {sampler_interval: -1}",
            r"sams\.sampler\.Core\.sampler_interval: expected `float` >= 0",
        ),
        (
            "sams.collector: {samplers: [sams.sampler.FSStats]}",
            r"sams\.sampler\.FSStats: mount_points",
        ),
    ],
)
def test_mistakes_are_one_sentence(load, text: str, sentence: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ConfigError, match=sentence) as caught:
        load(text)
    assert "sams.yaml: " in str(caught.value)
    assert "\n" not in str(caught.value)


def test_modules_of_a_site(load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "site_modules.py").write_text(
        """
class Output:
    name = "site"
    def __init__(self, section, view): self.section = section
class Sampler:
    name = "site"
    def __init__(self, *, sampler_interval=1, word=""): self.interval, self.word = 1, word
    def close(self): pass
"""
    )
    monkeypatch.syspath_prepend(tmp_path)
    settings = load(
        """
sams.collector:
  samplers: [site_modules]
  outputs: [site_modules, "site_modules:Output"]
site_modules: {word: hello, retry_count: 1}
"""
    )
    view = view_of(1, "n")
    assert settings.outputs[0].factory(view).section["word"] == "hello"  # type: ignore[attr-defined]
    assert settings.outputs[0].retry_count == 1
    assert settings.outputs[1].name == "site_modules:Output"
    assert settings.samplers[0].make(view).word == "hello"  # type: ignore[attr-defined]


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.yaml: cannot be read: No such file"):
        load_sams_settings(tmp_path / "none.yaml")
