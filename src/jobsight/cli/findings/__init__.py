"""The commands ``jobsight findings`` and ``jobsight explain``.

Read commands.py first: it defines the subcommands. listing.py lists findings and sums, replies.py
records what people say to them, update.py applies changed rules, effect.py shows whether it helped,
rule_tests.py runs the tests of rule files.
"""
