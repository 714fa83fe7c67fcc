"""scripts/check-words: what it reads of each kind of file."""

from __future__ import annotations

import importlib.util
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def words() -> ModuleType:
    file = Path(__file__).parent.parent / "scripts" / "check-words"
    loader = SourceFileLoader("check_words", str(file))
    spec = importlib.util.spec_from_loader("check_words", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("name", "text", "lines"),
    [
        ("tests/x.py", '# a folder\nfolder = f"{folder}/a b"\nraise X("no such folder")\n', [1, 3]),
        ("bench/x.py", '"""Reads a\nfolder."""\n', [2]),
        ("src/x.html", "<p class='folder'>\nThe folder {{ folder }}</p>{% if folder %}\n", [2]),
        ("src/x.js", 'const folder = 1; // a folder\nshow("a folder", `a ${folder}`);\n', [1, 2]),
        ("a.yaml", "# a folder\nfolder: x\nhelp: a folder of files\ncode: `a folder`\n", [1, 3]),
        ("a.md", "a folder\n`a folder`\n", [1]),
    ],
)
def test_what_is_read(words: ModuleType, name: str, text: str, lines: list[int]) -> None:
    assert [line for line, _, _ in sorted(set(words.hits(name, text)))] == lines
