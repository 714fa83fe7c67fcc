"""Hook of mkdocs: links that leave docs/.

The documents are read in the repository and as a site. A link to a file outside of docs/
(`../CONTRIBUTING.md`, `../deploy/...`) works in the repository only; on the site it is the name
of the file.
"""

from __future__ import annotations

import re
from typing import Any

_OUTSIDE = re.compile(r"\[([^\]]+)\]\((?:\.\./)+([^)#\s]+)(?:#[^)\s]*)?\)")


def on_page_markdown(markdown: str, *, page: Any, **given: Any) -> str:
    """Replace links out of docs/; those of docs/findings to docs/ stay."""
    inside = page.file.src_uri.startswith("findings/")

    def replace(found: re.Match[str]) -> str:
        if inside and found[0].count("../") == 1 and found[2].endswith(".md"):
            return found[0]
        return f"{found[1]} (`{found[2]}`)"

    return _OUTSIDE.sub(replace, markdown)
