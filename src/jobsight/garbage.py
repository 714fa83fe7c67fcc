"""Python's search for circles among objects, kept rare where records come and go by the thousand.

Records hold no circles and go by themselves. A search looks at all objects that there are, most of
which were imported and stay to the end: it took a quarter of the time of a batch.
"""

from __future__ import annotations

import gc


def search_rarely(new_objects: int) -> None:
    """Leave alone what is there by now, and search when so many objects have been made since."""
    gc.freeze()
    gc.set_threshold(new_objects)
