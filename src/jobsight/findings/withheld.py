"""Which rules cannot decide, and why: judged again for the newest runs by their stored figures."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Final

import msgspec

from jobsight.findings.packed import decode_figures
from jobsight.findings.worker import Judge
from jobsight.store.findings.rows import owner_of
from jobsight.store.findings.works import figures_of_runs
from jobsight.store.read.queries import StoredRun
from jobsight.store.store import Store


class WithheldKind(msgspec.Struct, kw_only=True):
    """A rule that did not decide about some runs."""

    kind: str
    runs: int
    #: The most frequent reason, by one of its sentences, and how many of the runs have it.
    reason: str
    of: int


#: Two sentences with other figures are the same reason.
_FIGURE: Final = re.compile(r"\d[\d:.,]*")


def withheld_kinds(store: Store, judge: Judge, runs: Sequence[StoredRun]) -> list[WithheldKind]:
    """The rules that were withheld for some of the runs, the most frequent first."""
    reasons: dict[str, Counter[str]] = {}
    sentences: dict[str, str] = {}
    stored = figures_of_runs(store.database, [run.id for run in runs])
    for run in runs:
        if run.id not in stored:
            continue
        info = run.info
        owner = owner_of(info.cluster, info.user, info.account, info.partition, run.start)
        for verdict in judge.judge(decode_figures(stored[run.id].data), owner):
            if verdict.outcome == "withheld":
                reason = _FIGURE.sub("#", verdict.reason)
                sentences.setdefault(reason, verdict.reason)
                reasons.setdefault(verdict.kind, Counter())[reason] += 1
    result = []
    for kind, counts in reasons.items():
        [(reason, count)] = counts.most_common(1)
        result.append(
            WithheldKind(kind=kind, runs=counts.total(), reason=sentences[reason], of=count)
        )
    return sorted(result, key=lambda each: (-each.runs, each.kind))
