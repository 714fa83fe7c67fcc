"""The key of a batch script: a digest of what it does, independent of comments and requests."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from typing import Final, NamedTuple

#: Characters of a script that are read; the rest of a longer one is left out.
MAX_SCRIPT_SIZE: Final = 256 * 1024
_KEY_SIZE: Final = 16

#: ``<<EOF``, ``<<-'EOF'`` and ``<<\EOF``, not ``<<<``.
_HEREDOC: Final = re.compile(r"(?<!<)<<(-?)[ \t]*(\\?[\w.+-]+|'[^'\n]*'|\"[^\"\n]*\")")
_DIRECTIVE: Final = re.compile(r"#(SBATCH|PBS|BSUB|\$)")


def script_key(text: str) -> bytes:
    """The digest of a batch script without comments, blank lines and ``#SBATCH`` lines.

    Quotes are followed over lines, and the content of here-documents counts as it is: a ``#`` in
    them begins no comment.
    """
    digest = hashlib.blake2b(digest_size=_KEY_SIZE)
    for line in command_lines(text[:MAX_SCRIPT_SIZE]):
        digest.update(line.encode("utf-8", "surrogatepass"))
        digest.update(b"\n")
    return digest.digest()


def command_lines(text: str) -> Iterable[str]:
    """The lines of a shell script that do something, without comments and outer blanks."""
    lines = iter(text.replace("\r\n", "\n").split("\n"))
    quote = ""
    first = True
    for line in lines:
        if first:
            # The interpreter is part of what runs.
            first = False
            if line.startswith("#!"):
                yield line.rstrip()
                continue
        if not quote and _DIRECTIVE.match(line):
            continue
        within = bool(quote)
        code, quote, documents = _without_comment(line, quote)
        kept = code if within or quote else code.strip()
        if kept or within:
            yield kept
        for document in documents:
            yield from _here_document(lines, document)


class _Document(NamedTuple):
    """A here-document that begins after the line."""

    delimiter: str
    #: Leading tabs of its lines are removed.
    strips_tabs: bool


def _without_comment(line: str, quote: str) -> tuple[str, str, list[_Document]]:
    """The line up to its comment, the quote that is open after it, and its here-documents."""
    documents: list[_Document] = []
    position, word = 0, False
    while position < len(line):
        character = line[position]
        if quote:
            if character == "\\" and quote == '"':
                position += 1
            elif character == quote:
                quote = ""
            word = True
        elif character == "\\":
            position += 1
            word = True
        elif character in "'\"`":
            # Backquotes hold commands: a comment in them is too rare to be followed.
            quote = "" if character == "`" else character
            word = True
        elif character == "#" and not word:
            return line[:position], "", documents
        elif character == "<" and (found := _HEREDOC.match(line, position)):
            documents.append(_Document(found[2].strip("'\"").lstrip("\\"), found[1] == "-"))
            position = found.end() - 1
            word = True
        else:
            # ``${#name}`` and ``$#`` are no comments: the character before is part of a word.
            word = character not in " \t;&|()"
        position += 1
    return line, quote, documents


def _here_document(lines: Iterable[str], document: _Document) -> Iterable[str]:
    for line in lines:
        yield line
        if (line.lstrip("\t") if document.strips_tabs else line) == document.delimiter:
            return
