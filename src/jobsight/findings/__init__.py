"""Findings: what went wrong in a run, what caused it, what it cost, and the line to change.

The data flows in one direction. ``data.py`` reads one run from the store, ``figures.py`` computes
the figures of ``vocabulary.py`` from it, ``engine.py`` applies the rules to the figures, and
``worker.py`` stores the result. A rule is data: a YAML file whose conditions are CEL expressions
over the figures, checked for types and units when it is loaded (``rule_file.py``,
``conditions.py``).

Start with vocabulary.py (what a condition can use) and finding.py (what a rule yields).
"""
