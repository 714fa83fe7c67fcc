"""The ``jobsight findings`` command.

Read commands.py first: it defines the subcommands. rule_tests.py runs the tests of rule files.
"""
