"""JSON that others wrote.

msgspec raises UnicodeDecodeError for text that is not UTF-8 and RecursionError for deep nesting, of
which its own errors are no base. A caller that handles msgspec's errors must not be ended by such
a message, so :func:`decode_json` raises them as DecodeError.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

_Value = TypeVar("_Value")


def decode_json(decoder: msgspec.json.Decoder[_Value], data: bytes | str) -> _Value:
    """Decode a document; raises msgspec.DecodeError and nothing else."""
    try:
        return decoder.decode(data)
    except UnicodeDecodeError as error:
        raise msgspec.DecodeError(f"the text is not UTF-8: {error.reason}") from None
    except RecursionError:
        raise msgspec.DecodeError("the document is nested too deeply") from None


def decode_json_as(kind: type[_Value], data: bytes | str) -> _Value:
    """The same without a decoder at hand."""
    return decode_json(msgspec.json.Decoder(kind), data)
