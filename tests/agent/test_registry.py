from collections import OrderedDict
from pathlib import Path

import pytest

from jobsight.agent import registry


def test_every_short_name_leads_somewhere() -> None:
    for kind, table in registry.PARTS.items():
        for name in table:
            assert registry.load_part(kind, name) is not None


def test_parts_of_others() -> None:
    assert registry.load_part("output", "collections:OrderedDict") is OrderedDict


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("nosuch", r"there is no output named 'nosuch'; valid names: .*package\.module:Name"),
        ("no_such_package.module:Name", "there is no module no_such_package"),
        ("collections.nosuch:Name", r"there is no module collections\.nosuch"),
        ("collections:Nosuch", "collections has no Nosuch"),
        (":Name", r"the form package\.module:Name"),
        ("collections:", r"the form package\.module:Name"),
    ],
)
def test_errors_say_which_half_is_wrong(name: str, sentence: str) -> None:
    with pytest.raises(registry.PartError, match=sentence):
        registry.load_part("output", name)


def test_a_fault_inside_a_part_is_not_hidden(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "faulty_part.py").write_text("import a_module_that_is_missing\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="a_module_that_is_missing"):
        registry.load_part("sampler", "faulty_part:Name")
