from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from jobsight.config.load import load_settings
from jobsight.errors import ConfigError
from tests.user import as_a_user


@pytest.fixture(autouse=True)
def _no_files_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = [tmp_path / "etc", tmp_path / "home"]
    monkeypatch.setattr("jobsight.config.paths.config_directories", lambda: folders)


def _file(tmp_path: Path, text: str, name: str = "site.toml") -> Path:
    file = tmp_path / name
    file.write_text(text)
    return file


def test_defaults() -> None:
    settings = load_settings(environment={})
    assert (settings.server.host, settings.server.port) == ("127.0.0.1", 8080)
    assert settings.store.location.endswith("store.db")
    assert settings.agent.sampling.later == 30


def test_toml_and_yaml_say_the_same(tmp_path: Path) -> None:
    toml = _file(tmp_path, 'cluster = "a"\n[server]\nport = 1\nallowed_hosts = ["x"]\n')
    yaml = _file(tmp_path, "cluster: a\nserver: {port: 1, allowed_hosts: [x]}\n", "site.yaml")
    assert load_settings(toml, {}) == load_settings(yaml, {})
    assert load_settings(toml, {}).server.port == 1


def test_the_environment_wins(tmp_path: Path) -> None:
    file = _file(tmp_path, "[server]\nport = 1\nhost = '::1'\n")
    environment = {
        "JOBSIGHT_CONFIG": str(file),
        "JOBSIGHT_SERVER__PORT": "2",
        "JOBSIGHT_CLUSTER": "beta",
        "JOBSIGHT_AGENT__IGNORE_UIDS": "0, 1",
        "JOBSIGHT_AGENT__SAMPLING__LATER": "60",
        "JOBSIGHT_JOB": "12",
        "PATH": "/bin",
    }
    settings = load_settings(environment=environment)
    assert (settings.server.port, settings.server.host) == (2, "::1")
    assert settings.cluster == "beta"
    assert settings.agent.ignore_uids == [0, 1]
    assert settings.agent.sampling.later == 60


def test_the_files_of_the_usual_places_are_joined(tmp_path: Path) -> None:
    for folder, text in (
        ("etc", "cluster = 'site'\n[server]\nport = 1\n"),
        ("home", "[server]\nport = 2\n"),
    ):
        (tmp_path / folder).mkdir()
        _file(tmp_path / folder, text, "jobsight.toml")
    settings = load_settings(environment={})
    assert (settings.cluster, settings.server.port) == ("site", 2)
    _file(tmp_path / "etc", "cluster: b\n", "jobsight.yaml")
    with pytest.raises(ConfigError, match="both exist"):
        load_settings(environment={})


def test_what_may_not_be_seen_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    # Not in tmp_path, whose parents are closed to others as well.
    with TemporaryDirectory() as place:
        closed, kept, own = folders = [Path(place) / name for name in ("closed", "kept", "own")]
        for folder in folders:
            folder.mkdir()
            _file(folder, f"cluster = '{folder.name}'\n", "jobsight.toml").chmod(0o644)
        monkeypatch.setattr("jobsight.config.paths.config_directories", lambda: [own, kept, closed])
        assert load_settings(environment={}).cluster == "closed"
        Path(place).chmod(0o755)
        own.chmod(0o755)
        kept.chmod(0o755)
        (kept / "jobsight.toml").chmod(0)
        closed.chmod(0)
        try:
            with as_a_user():
                assert load_settings(environment={}).cluster == "own"
        finally:
            closed.chmod(0o700)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[server]\nprot = 1\n", r"unknown key server\.prot; did you mean server\.port\?"),
        ("[sever]\nport = 1\n", r"unknown key sever; did you mean server\?"),
        ("zzz = 1\n", r"unknown key zzz; valid here: cluster, "),
        ("[server]\nport = '8080'\n", r"server\.port: expected `int`, got `str`$"),
        ("[server]\nport = 99999\n", r"server\.port: expected `int` <= 65535$"),
        ("[agent]\nspool = ''\n", r"agent\.spool: expected `str` of length >= 1$"),
        ("server = 8080\n", r"server: expected a table of settings, got `int`"),
        ("[server]\nallowed_hosts = [1]\n", r"server\.allowed_hosts: expected `str`, got `int`$"),
        ("[agent.sampling]\nlatr = 1\n", r"unknown key agent\.sampling\.latr; did you mean"),
        ("[server\n", r"site\.toml: .*line 1"),
    ],
)
def test_what_is_not_understood_is_refused(tmp_path: Path, text: str, sentence: str) -> None:
    file = _file(tmp_path, text)
    with pytest.raises(ConfigError, match=sentence) as caught:
        load_settings(file, {})
    assert str(caught.value).startswith(str(file))


@pytest.mark.parametrize(
    ("variable", "value", "sentence"),
    [
        ("JOBSIGHT_SERVER__PROT", "1", r"unknown key server\.prot; did you mean server\.port\?"),
        ("JOBSIGHT_SERVER__PORT", "x", r"server\.port: expected `int`, got `str`"),
        ("JOBSIGHT_SERVER", "x", "names a table, not a setting; .*JOBSIGHT_SERVER__HOST"),
        ("JOBSIGHT_CLUSTRE", "x", r"unknown key clustre; did you mean cluster\?"),
        ("JOBSIGHT_CLUSTER__NAME", "x", r"unknown key cluster\.name; this setting has no"),
    ],
)
def test_variables_are_checked_too(variable: str, value: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=f"environment variable {variable}: {sentence}"):
        load_settings(environment={variable: value})


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("a.toml", None, "cannot be read: No such file"),
        ("a.ini", b"", r"TOML \(\.toml\) or YAML"),
        ("a.yaml", b"a: [", r"a.yaml: line 1, column 5: "),
        ("a.yaml", b"- 1", "the file: expected a table of settings, got `list`"),
        ("a.toml", b"a = '\xff'", "is not UTF-8 text at byte 5"),
    ],
)
def test_files_that_cannot_be_read(
    tmp_path: Path, name: str, content: bytes | None, sentence: str
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=sentence):
        load_settings(tmp_path / name, {})


def test_an_empty_yaml_file_is_no_error(tmp_path: Path) -> None:
    assert load_settings(_file(tmp_path, "", "a.yaml"), {}).server.port == 8080


def test_each_cluster_is_as_the_scheduler_but_for_what_it_says(tmp_path: Path) -> None:
    file = tmp_path / "jobsight.toml"
    file.write_text(
        "[scheduler]\ninterval = 60\ntimeout = 5\n[scheduler.rest]\nuser = 'slurm'\n"
        "[clusters.big]\nsource = 'text'\n[clusters.small.rest]\nurl = 'http://h:1'\n"
    )
    settings = load_settings(file, {"JOBSIGHT_CLUSTERS__SMALL__TIMEOUT": "9"})
    big, small = settings.each_cluster()
    assert (big.cluster, big.scheduler.source, big.scheduler.timeout) == ("big", "text", 5)
    assert (small.cluster, small.scheduler.timeout, small.scheduler.interval) == ("small", 9, 60)
    assert (small.scheduler.rest.user, small.scheduler.rest.url) == ("slurm", "http://h:1")
    assert settings.scrapes()
    file.write_text("[clusters.big]\nsorce = 'text'\n")
    with pytest.raises(ConfigError, match=r"unknown key clusters\.big\.sorce; did you mean"):
        load_settings(file, {})
    file.write_text("clusters = 3\n")
    with pytest.raises(ConfigError, match="clusters: expected"):
        load_settings(file, {})


@pytest.mark.parametrize(
    ("old", "key"),
    [
        ("[agent]\nrun_folder = 'x'", "agent.run_directory"),
        ("[agent]\nsend_every = 1.0", "agent.send_interval"),
        ("[agent]\nask_slurm = false", "agent.query_slurm"),
        ("[agent.metrics]\nseed_names = true", "agent.metrics.petricore_names"),
        ("[server.ingest]\nbody_time = 1.0", "server.ingest.body_timeout"),
        ("[store.retention]\nthinned = 1.0", "store.retention."),
    ],
)
def test_a_key_of_an_earlier_version_is_refused(tmp_path: Path, old: str, key: str) -> None:
    with pytest.raises(ConfigError, match="unknown key") as caught:
        load_settings(_file(tmp_path, old), {})
    table, _, name = key.rpartition(".")
    assert f"did you mean {key}?" in str(caught.value) or "valid here: " in str(caught.value)
    assert name in str(caught.value)
    assert table in str(caught.value)


@pytest.mark.parametrize(
    ("text", "interval"), [("0", 0), ("false", False), ("1", 1), ("30.5", 30.5)]
)
def test_samples_of_the_node_are_turned_off_by_0_or_false(
    tmp_path: Path, text: str, interval: float
) -> None:
    file = _file(tmp_path, f"[agent]\nnode_interval = {text}\n")
    assert load_settings(file, {}).agent.node_interval == interval
    assert load_settings(None, {"JOBSIGHT_AGENT__NODE_INTERVAL": text}).agent.node_interval == (
        interval
    )


@pytest.mark.parametrize("text", ["true", "0.5"])
def test_other_intervals_of_the_node_are_refused(tmp_path: Path, text: str) -> None:
    file = _file(tmp_path, f"[agent]\nnode_interval = {text}\n")
    with pytest.raises(ConfigError, match=f"agent.node_interval: is {text}; expected 1 to 3600"):
        load_settings(file, {})
