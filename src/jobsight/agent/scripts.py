"""Which script, module or archive an interpreter runs, by its command line.

Only this one argument is taken, and only where an administrator has asked for it: other arguments
may hold what a user wants nobody to see, and so does program text (``-c``, ``-e``), which is never
looked at.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

#: Between the path of an interpreter and what it runs; no path of a file has two slashes.
SEPARATOR: Final = b"//"
#: Bytes of a command line that are read, and of a script's name that are kept.
COMMAND_LINE: Final = 16384
_LONGEST: Final = 1024


class _Language(NamedTuple):
    """How an interpreter reads its command line."""

    #: Letters of options: program text follows, a module, a value (attached or the next
    #: argument), a value that is attached.
    text: bytes = b""
    module: bytes = b""
    value: bytes = b""
    attached: bytes = b""
    #: Options in words that take the next argument for their value.
    words: frozenset[bytes] = frozenset()
    #: Options in words whose value is what is run, and those with program text.
    runs: frozenset[bytes] = frozenset()
    programs: frozenset[bytes] = frozenset()
    #: Options of one dash are words, too.
    dash_words: bool = False
    #: A plain argument is what is run.
    plain: bool = True
    #: What is run must be a mere name: it could be program text.
    name_only: bool = False


_PYTHON = _Language(
    text=b"c", module=b"m", value=b"WXQ", words=frozenset({b"--check-hash-based-pycs"})
)
_PERL = _Language(text=b"eE", value=b"I", attached=b"MmFCDxil0dV")
_JULIA = _Language(
    text=b"eE",
    value=b"ptJCHL",
    attached=b"Og",
    words=frozenset(
        {b"--threads", b"--procs", b"--sysimage", b"--cpu-target", b"--home", b"--load",
         b"--machine-file", b"--gcthreads"}
    ),
    programs=frozenset({b"--eval", b"--print"}),
)  # fmt: skip
_R = _Language(
    runs=frozenset({b"--file", b"-f"}),
    programs=frozenset({b"-e"}),
    words=frozenset({b"-g", b"--gui", b"--encoding"}),
    dash_words=True,
    plain=False,
)
_JAVA = _Language(
    words=frozenset(
        {b"-cp", b"-classpath", b"--class-path", b"-p", b"--module-path", b"--add-modules",
         b"--upgrade-module-path", b"--add-opens", b"--add-exports", b"--add-reads"}
    ),
    runs=frozenset({b"-jar", b"-m", b"--module"}),
    dash_words=True,
)  # fmt: skip
_MATLAB = _Language(
    runs=frozenset({b"-batch", b"-r"}), dash_words=True, plain=False, name_only=True
)

_INTERPRETERS: Final = (
    (re.compile(rb"(?:python|pypy)[\d.]*"), _PYTHON),
    (re.compile(rb"perl[\d.]*"), _PERL),
    (re.compile(rb"julia"), _JULIA),
    (re.compile(rb"R"), _R),
    (re.compile(rb"java"), _JAVA),
    (re.compile(rb"(?i:matlab)"), _MATLAB),
)


def is_interpreter(path: bytes) -> bool:
    return _language(path) is not None


def script_of(path: bytes, arguments: Sequence[bytes]) -> bytes | None:
    """What an interpreter runs, by its arguments without its own name; None where that is not
    to be seen: program text, standard input, an interactive session."""
    language = _language(path)
    if language is None:
        return None
    script = _find(language, iter(arguments))
    if not script or len(script) > _LONGEST:
        return None
    if language.name_only and not re.fullmatch(rb"[A-Za-z]\w*", script):
        return None
    return script


def _language(path: bytes) -> _Language | None:
    program = path[path.rfind(b"/") + 1 :]
    for pattern, language in _INTERPRETERS:
        if pattern.fullmatch(program):
            return language
    return None


def _find(language: _Language, arguments: Iterator[bytes]) -> bytes | None:
    for argument in arguments:
        if argument == b"--":
            return next(arguments, None) if language.plain else None
        if argument == b"-" or (argument[:1] != b"-" and not language.plain):
            return None
        if argument[:1] != b"-":
            return argument
        word = argument.partition(b"=")
        if argument.startswith(b"--") or language.dash_words:
            if word[0] in language.programs:
                return None
            if word[0] in language.runs:
                return word[2] if word[1] else next(arguments, None)
            if argument in language.words:
                next(arguments, None)
            continue
        for place, letter in enumerate(argument[1:], 2):
            rest = argument[place:]
            if letter in language.text:
                return None
            if letter in language.module:
                module = rest or next(arguments, None)
                return None if module is None else b"-m " + module
            if letter in language.value:
                if not rest:
                    next(arguments, None)
                break
            if letter in language.attached:
                break
    return None
