"""The ``jobsight software`` command: report and names of software, and their update by rules.

Read commands.py first: it defines the subcommands and runs those that list names and paths.
report.py shows usage, update.py loads changed rules.
"""
