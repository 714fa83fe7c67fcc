"""The language of a page, and its catalogue of messages.

A page is in the language that its viewer has chosen, else in the one that the browser prefers, else
in English. Messages are marked in the templates; ``make translations`` collects them in
``translations/*.po``, which are compiled when a language is first used: there is no compiled file
that can be older than its source. Texts that rules, Slurm and users have written are shown as they
are.
"""

from __future__ import annotations

import io
from functools import cache
from gettext import NullTranslations
from importlib.resources import files
from typing import Final

from starlette.datastructures import Headers
from starlette.types import Scope

from jobsight.access.viewer import viewer_of

#: The first is that of the messages themselves.
LANGUAGES: Final = ("en", "fr")
#: Characters of the header that are read: the client chooses its length.
_MAX_HEADER: Final = 500


def language_of(scope: Scope) -> str:
    """The language of the reply to a request."""
    chosen = viewer_of(scope).preferences.language
    if chosen in LANGUAGES:
        return chosen
    return preferred_language(Headers(scope=scope).get("accept-language", ""))


def preferred_language(header: str) -> str:
    """The language of an ``Accept-Language`` header that is known and has the highest weight."""
    best, highest = LANGUAGES[0], 0.0
    for part in header[:_MAX_HEADER].split(","):
        name, _, parameters = part.partition(";")
        language = name.strip().partition("-")[0].lower()
        weight = _weight(parameters)
        if language in LANGUAGES and weight > highest:
            best, highest = language, weight
    return best


def _weight(parameters: str) -> float:
    name, _, value = parameters.strip().partition("=")
    if not name:
        return 1.0
    try:
        return float(value) if name.strip() == "q" else 1.0
    except ValueError:
        return 0.0


@cache
def catalogue(language: str) -> NullTranslations:
    """The messages of a language; those of English are the messages themselves."""
    if language == LANGUAGES[0]:
        return NullTranslations()
    from babel.messages.mofile import write_mo
    from babel.messages.pofile import read_po
    from babel.support import Translations

    source = files("jobsight.web").joinpath("translations", f"{language}.po").read_bytes()
    compiled = io.BytesIO()
    write_mo(compiled, read_po(io.BytesIO(source), locale=language))
    compiled.seek(0)
    return Translations(compiled)
