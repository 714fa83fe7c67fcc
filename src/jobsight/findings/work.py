"""What makes two runs the same work: the script, the name of the job, the set of programs.

:mod:`jobsight.util.script_key` is a digest of the commands of a batch script; :func:`name_key` a
name whose numbers are folded; :class:`Signature` the programs with more than 1 % of the CPU time.
:func:`find_work` decides for a run, in this order: the same user and script; the same user, name
and programs; the same account and programs.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from jobsight.findings.program_names import is_waiting, names_of
from jobsight.store.findings.works import WorkKey

if TYPE_CHECKING:
    from jobsight.model import JobInfo

_KEY_SIZE: Final = 16
#: Characters of a name, and programs of a signature.
_MAX_NAME: Final = 200
_MAX_PROGRAMS: Final = 16
_PROGRAM_SIZE: Final = 4

_DIGITS: Final = re.compile(r"\d+")


def name_key(name: str | None) -> str:
    """A name whose numbers are folded: ``sim_0012.sh`` and ``sim_7.sh`` are the same."""
    return _DIGITS.sub("#", (name or "").strip())[:_MAX_NAME]


class Signature(NamedTuple):
    """The programs of a run, as digests of their names.

    A program with nearly 1 % of the CPU time is in one run and not in the next. So a set of
    another run agrees if it has all programs of ``sure`` and none that is not in ``possible``.
    Shells and launchers only wait: what they use is the same whatever the others do, so that their
    share falls where there is more to compute. They are possible, and count if nothing else ran.
    """

    programs: frozenset[bytes] = frozenset()
    #: More than 2 %, and more than 0.5 % of the CPU time.
    sure: frozenset[bytes] = frozenset()
    possible: frozenset[bytes] = frozenset()

    def agrees(self, programs: frozenset[bytes]) -> bool:
        return self.sure <= programs <= self.possible

    def is_part_of(self, programs: frozenset[bytes]) -> bool:
        """Whether a run with these programs may have begun like this one."""
        return self.sure <= programs


def signature_of(uses: Iterable[tuple[bytes, float]]) -> Signature:
    """The signature of programs, each with its path and CPU time.

    Names, not paths: a new version of a program in another directory is the same work.
    """
    times: dict[str, float] = {}
    waiting: dict[str, float] = {}
    for path, cpu_time in uses:
        name = _DIGITS.sub("#", names_of(path)[-1])
        kind = waiting if is_waiting(path) else times
        kind[name] = kind.get(name, 0.0) + max(cpu_time, 0.0)
    if not any(times.values()):
        times, waiting = waiting, {}
    total = sum(times.values())
    if total <= 0:
        return Signature()
    largest = sorted(times, key=lambda name: (-times[name], name))[:_MAX_PROGRAMS]

    def above(share: float) -> frozenset[bytes]:
        return frozenset(_program_digest(name) for name in largest if times[name] > share * total)

    possible = above(0.005) | frozenset(map(_program_digest, waiting))
    return Signature(above(0.01), above(0.02), possible)


def _program_digest(name: str) -> bytes:
    return hashlib.blake2b(name.encode("utf-8", "replace"), digest_size=_PROGRAM_SIZE).digest()


def name_prefix(name: str) -> bytes:
    """The part of the key of a work by name that stands for the name."""
    return hashlib.blake2b(name.encode("utf-8", "replace"), digest_size=_KEY_SIZE).digest()


def _encode(programs: frozenset[bytes]) -> bytes:
    return b"".join(sorted(programs))


def decode_programs(key: bytes, kind: str) -> frozenset[bytes]:
    """The programs in the key of a work by name or signature."""
    digests = key[_KEY_SIZE:] if kind == "name" else key
    return frozenset(
        digests[index : index + _PROGRAM_SIZE] for index in range(0, len(digests), _PROGRAM_SIZE)
    )


def find_work(
    info: JobInfo,
    signature: Signature,
    *,
    script: bytes | None = None,
    complete: bool = True,
    known: Sequence[bytes] = (),
) -> WorkKey | None:
    """The work of a run; None if nothing is known that others could have in common with it.

    ``known`` has the keys of the user's works of this name, the latest first: a run joins one of
    them whose programs agree. ``complete`` is false for a run that has not ended well: it may have
    died before its last program, and joins the latest work that it may be the beginning of.
    """
    cluster, user, account = info.cluster, info.user or "", info.account or ""
    folded = name_key(info.name)
    if script is not None and user:
        return WorkKey(cluster, user, "", "script", script, folded)
    if user and folded:
        for key in known:
            programs = decode_programs(key, "name")
            if signature.agrees(programs) or (not complete and signature.is_part_of(programs)):
                return WorkKey(cluster, user, "", "name", key, folded)
        key = name_prefix(folded) + _encode(signature.programs)
        return WorkKey(cluster, user, "", "name", key, folded)
    if account and signature.programs:
        return WorkKey(cluster, "", account, "signature", _encode(signature.programs), folded)
    return None
