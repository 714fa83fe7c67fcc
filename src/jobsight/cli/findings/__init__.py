"""The commands ``jobsight findings`` and ``jobsight explain``.

Read commands.py first: it defines the subcommands and runs the tests of rule files. listing.py
lists findings and sums, replies.py records what people say to them, update.py applies changed
rules, effect.py shows whether it helped.
"""
