"""Text cut to a number of terminal cells; a wide character takes two."""

from __future__ import annotations

from rich.cells import cell_len, set_cell_size

_GAP = "..."


def fit(text: str, width: int) -> str:
    """Cut a text at its end."""
    if cell_len(text) <= width:
        return text
    if width <= len(_GAP):
        return _head(text, max(width, 0))
    return _head(text, width - len(_GAP)) + _GAP


def fit_path(path: str, width: int) -> str:
    """Cut a path in its middle: the file's own name is what people look for."""
    if cell_len(path) <= width:
        return path
    if width <= len(_GAP) + 2:
        return fit(path, width)
    room = width - len(_GAP)
    name = path[path.rfind("/") :]
    # The whole name where it fits, else the two ends of the path share the room.
    tail = min(max(cell_len(name), room * 2 // 3), room - 1)
    tail = tail if tail < room else room // 2
    end = _tail(path, tail)
    return _head(path, room - cell_len(end)) + _GAP + end


def _head(text: str, width: int) -> str:
    # A wide character on the edge becomes a space: the column stays straight.
    return set_cell_size(text, width)


def _tail(text: str, width: int) -> str:
    end = len(text)
    start = end
    used = 0
    while start > 0:
        size = cell_len(text[start - 1])
        if used + size > width:
            break
        used += size
        start -= 1
    return text[start:end]
