"""The settings in docs/access.md are accepted."""

import re
from pathlib import Path

from jobsight.config.load import load_settings

DOCUMENT = Path(__file__).parents[2] / "docs" / "access.md"


def test_the_examples_are_accepted(tmp_path: Path) -> None:
    examples = re.findall(r"```toml\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    assert len(examples) == 3
    file = tmp_path / "jobsight.toml"
    for example in examples:
        file.write_text(example)
        load_settings(file, {})
    file.write_text("\n".join(examples))
    access = load_settings(file, {}).access
    assert access.oidc.roles == {"hpc-staff": "staff", "hpc-audit": "auditor"}
    assert access.ldap.url == "ldaps://ldap.example.org"
    assert access.proxy.addresses == ["127.0.0.1"]
