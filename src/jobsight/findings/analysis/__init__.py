"""The figures of a run by theme.

Each module has a function ``add(data, figures)`` that sets the figures of one section of
:mod:`jobsight.findings.vocabulary`. A figure that was not measured is not known, with the reason;
it is never zero. :mod:`jobsight.findings.figures` calls them in order: later themes use figures of
earlier ones.
"""
