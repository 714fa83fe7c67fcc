"""Names of software: rules that map the paths of executables to name and version.

Start with :mod:`rules` (a set of rules applied to a path), then :mod:`rule_file` and :mod:`regex`
(files and patterns). :mod:`naming` applies rules to a store, :mod:`worker` does so in the
background. :mod:`preview` shows the effect of other rules, :mod:`suggestions` proposes rules for
paths without a name, and :mod:`queries` answers reports. ``ready/`` contains the shipped rules.
"""
