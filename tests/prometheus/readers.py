"""Reads what an exporter offers, as Prometheus would."""

from __future__ import annotations

import urllib.request
from collections.abc import Mapping

from prometheus_client.parser import text_string_to_metric_families

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def samples(text: str | bytes) -> Samples:
    """Every sample by its name and labels; one that comes twice is a fault."""
    found: Samples = {}
    for family in text_string_to_metric_families(text if isinstance(text, str) else text.decode()):
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in found, key
            found[key] = sample.value
    return found


def values(found: Samples, name: str, **labels: str) -> dict[str, float]:
    """The values of a name by its one other label, "" where it has none."""
    wanted = set(labels.items())
    result = {}
    for (other, having), value in found.items():
        if other == name and wanted <= having:
            rest = {key: text for key, text in having if key not in labels}
            result[next(iter(rest.values()), "") if len(rest) < 2 else str(sorted(rest))] = value
    return result


def one(found: Samples, name: str, **labels: str) -> float:
    (value,) = values(found, name, **labels).values()
    return value


def fetch(url: str, headers: Mapping[str, str] | None = None) -> bytes:
    request = urllib.request.Request(url, headers=dict(headers or {}))
    with urllib.request.urlopen(request, timeout=60) as reply:
        return bytes(reply.read())
