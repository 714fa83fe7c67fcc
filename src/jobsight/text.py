"""Conversions of text: settings files, escaped paths and names, sizes such as 512M or 1.5GiB."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from jobsight.errors import ConfigError

#: What is wrong with a file whose parser ran out of stack.
NESTED = "is nested too deeply"


def file_text(file: Path) -> str:
    """The content of a file of settings or rules."""
    try:
        return file.read_bytes().decode()
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file}: is not UTF-8 text at byte {error.start}") from None


def yaml_reason(error: Exception) -> str:
    """What is wrong in a YAML file, with line and column; the line itself may contain a password.

    The errors of the library share no base class with a position, and it is not imported here.
    """
    problem = str(getattr(error, "problem", None) or "is not valid YAML")
    # Some problems quote the text of the file.
    problem = re.sub(r"(['\"]).*\1", "...", problem, flags=re.DOTALL)
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    return problem if mark is None else f"line {mark.line + 1}, column {mark.column + 1}: {problem}"


def readable_path(path: bytes) -> str:
    r"""Write the bytes of a path so that every character is printable and none is ambiguous.

    Printable UTF-8 is unchanged. Any other byte becomes ``\xNN``: bytes that are not UTF-8, and
    the bytes of characters that are not printable (controls, line separators, marks of the writing
    direction). A backslash is doubled, so ``\x41`` in the result is always the byte 0x41 and never
    four characters of a name. :func:`path_bytes` is the inverse.
    """
    text = path.decode("utf-8", "surrogateescape")
    if text.isprintable() and "\\" not in text:
        return text
    return "".join(map(_readable_character, text))


def readable_text(text: str) -> str:
    """Escape a name that a user chose (of a job, of a command) like a path."""
    return readable_path(text.encode("utf-8", "surrogatepass"))


def path_bytes(text: str) -> bytes:
    """The bytes of a path that :func:`readable_path` escaped."""
    return b"".join(map(_piece_bytes, _PIECES.findall(text)))


_PIECES = re.compile(r"\\\\|\\x[0-9a-f]{2}|[^\\]+|\\")


def _readable_character(character: str) -> str:
    if character == "\\":
        return "\\\\"
    if character.isprintable():
        return character
    return "".join(f"\\x{byte:02x}" for byte in character.encode("utf-8", "surrogateescape"))


def _piece_bytes(piece: str) -> bytes:
    if piece == "\\\\":
        return b"\\"
    if piece.startswith("\\x") and len(piece) == 4:
        return bytes.fromhex(piece[2:])
    return piece.encode("utf-8", "surrogateescape")


_POWERS: Final = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5}
_SIZE: Final = re.compile(
    r"(\d{1,18}(?:\.\d{1,18})?)\s*([kmgtp]?)(?:i?b)?", re.IGNORECASE | re.ASCII
)


def parse_size(text: str, where: str) -> int:
    """A size in bytes; units are powers of 1024, as in Slurm, and a plain number is bytes.

    ``where`` names the option in the error.
    """
    match = _SIZE.fullmatch(text.strip())
    size = round(float(match[1]) * 1024 ** _POWERS[match[2].lower()]) if match else 0
    if size <= 0 or size >= 2**62:
        raise ConfigError(f"{where} {text!r} is not a size; expected 512M, 2G or 1.5G")
    return size
