"""Small sets of rules for the tests of naming."""

from __future__ import annotations

import tempfile
from pathlib import Path

from jobsight.software.rules import RuleSet


def rule_set(*rules: str) -> RuleSet:
    """Rules from lines ``match software version``; ``ignore``, ``user`` and ``local=VERSION`` may
    follow."""
    lines = ["rules:"]
    for line in rules:
        match, software, version, *flags = line.split()
        lines += [f"  - match: '{match}'", f"    software: '{software}'"]
        local = "".join(flag.removeprefix("local=") for flag in flags if "=" in flag)
        lines += [f"    version: '{version}'", f"    versionstr: '{local}'"]
        lines += ["    ignore: true"] * ("ignore" in flags)
        lines += ["    user_provided: true"] * ("user" in flags)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "rules.yaml"
        file.write_text("\n".join(lines) + "\n")
        return RuleSet.load([file])


#: The software and its version as directories, the first rules of a site.
PLAIN = rule_set("^/opt/(?P<s>[^/]+)/(?P<v>[^/]+)/ %(s)s %(v)s")
#: The same, with one program renamed and another ignored.
BETTER = rule_set(
    "^/opt/alpha/(?P<v>[^/]+)/ Alpha %(v)s",
    "^/opt/tool/(?P<v>[^/]+)/ tool %(v)s ignore",
    "^/opt/(?P<s>[^/]+)/(?P<v>[^/]+)/ %(s)s %(v)s",
)
#: All under one name: rows that differ in versions, in local versions and in flags alone.
JOINED = rule_set(
    "^/opt/alpha/1.0/ tools 1 local=a",
    "^/opt/alpha/ tools 1 local=a user",
    "^/opt/beta/ tools 1 local=b ignore",
    "^/opt/tool/ tools 2 local=t",
)
NONE = RuleSet([])
