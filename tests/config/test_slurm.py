"""The cluster's name, from Slurm's own files where the settings have none."""

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobsight.config.load import load_settings
from jobsight.config.settings import short_host_name
from jobsight.config.slurm import slurm_cluster_name


# Fault 18: the cluster was called like the host, on every node another.
def test_settings_without_a_name_take_that_of_slurm(tmp_path: Path) -> None:
    slurm = tmp_path / "slurm.conf"
    slurm.write_text("# ClusterName=old\nSlurmctldHost=ctl\nclustername = Beluga # the name\n")
    file = tmp_path / "jobsight.toml"
    file.write_text("[server]\nport = 1\n")
    environment = {"SLURM_CONF": str(slurm)}
    # In lower case, as accounting has it.
    assert load_settings(file, environment).cluster == "beluga"
    file.write_text('cluster = "own"\n')
    assert load_settings(file, environment).cluster == "own"
    missing = {"SLURM_CONF": str(tmp_path / "none")}
    file.write_text("")
    # A scraper asks Slurm; a machine without Slurm is a cluster by itself.
    assert load_settings(file, missing).cluster == ""
    assert load_settings(file, missing).own_cluster() == short_host_name()


def test_the_name_is_found_in_included_files(tmp_path: Path) -> None:
    (tmp_path / "more.conf").write_text('Include own.conf\nClusterName="C1"\n')
    # Files that include each other end somewhere.
    (tmp_path / "own.conf").write_text("include more.conf\n")
    first = tmp_path / "slurm.conf"
    first.write_text("Include absent.conf\nInclude own.conf\n")
    places = [tmp_path / "none", first]
    assert slurm_cluster_name({}, places) == "c1"
    (tmp_path / "more.conf").write_text("Include own.conf\n")
    assert slurm_cluster_name({}, places) is None


@pytest.mark.parametrize(
    "text", ["", "ClusterName=", "NotClusterName=x", "AccountingStorage=ClusterNames", "\0\xff=="]
)
def test_a_file_without_a_name(text: str, tmp_path: Path) -> None:
    file = tmp_path / "slurm.conf"
    file.write_text(text, encoding="latin-1")
    assert slurm_cluster_name({"SLURM_CONF": str(file)}) is None


@given(st.binary(max_size=200), st.sampled_from([b"ClusterName=c2", b"\tCLUSTERNAME = c2 A=b"]))
def test_any_line_before_the_name(noise: bytes, line: bytes) -> None:
    with TemporaryDirectory() as folder:
        file = Path(folder) / "slurm.conf"
        file.write_bytes(b"x" + noise + b"\n#\n" + line + b"\n")
        found = slurm_cluster_name({"SLURM_CONF": str(file)})
        assert found == "c2" or b"clustername" in noise.lower()
