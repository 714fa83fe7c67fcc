"""Hooks of mkdocs: what differs between a document in the repository and a page of the site.

The documents are read in the repository and as a site. A link to a file outside of docs/
(`../CONTRIBUTING.md`, `../deploy/...`) works in the repository only; on the site it is the name
of the file. Blocks that belong to an item of a numbered list are indented by three characters,
where Python-Markdown expects four: else each item would be a list of its own, with the number 1.
Long names in tables are divided at their words.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

_OUTSIDE = re.compile(r"\[([^\]]+)\]\((?:\.\./)+([^)#\s]+)(?:#[^)\s]*)?\)")
_ITEM = re.compile(r"\d{1,2}\. ")
_CELL_CODE = re.compile(r"(<td[^>]*>)(.*?)(?=</td>)", re.DOTALL)
_CODE = re.compile(r"(<code[^>]*>)([^<]*)(?=</code>)")
#: Between the words of a name: JobsightAgentStalled, store.retention.audit_log, /etc/jobsight.
_WITHIN = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=\w[._/=])(?=[\w])")
#: Names that fit every column.
_SHORT = 12
#: The first part of a path. A browser would leave its slash at the end of a line.
_FIRST_PART = re.compile(r"(?<!\S)/\w+/?")


def on_page_markdown(markdown: str, *, page: Any, **given: Any) -> str:
    """Replace links out of docs/; those of docs/findings to docs/ stay."""
    inside = page.file.src_uri.startswith("findings/")

    def replace(found: re.Match[str]) -> str:
        if inside and found[0].count("../") == 1 and found[2].endswith(".md"):
            return found[0]
        return f"{found[1]} (`{found[2]}`)"

    return "\n".join(_indent_items(_OUTSIDE.sub(replace, markdown)))


def _indent_items(markdown: str) -> Iterator[str]:
    """One more space before the lines that belong to an item."""
    fence = item = False
    for line in markdown.split("\n"):
        if line.startswith("```"):
            fence = not fence
        if fence or (line and not line.startswith("   ")):
            item = not fence and _ITEM.match(line) is not None
        yield f" {line}" if item and line.startswith("   ") else line


def on_post_page(output: str, **given: Any) -> str:
    """Let browsers divide long names in tables at their words, and nowhere else."""

    def divide(cell: re.Match[str]) -> str:
        return cell[1] + _CODE.sub(lambda code: code[1] + _divided(code[2]), cell[2])

    return _CELL_CODE.sub(divide, output)


def _divided(names: str) -> str:
    words = names.split(" ")
    long = [_WITHIN.sub("<wbr>", word) if len(word) > _SHORT else word for word in words]
    return _FIRST_PART.sub(lambda first: f'<span class="whole">{first[0]}</span>', " ".join(long))
