"""Who may see and do what: accounts of people, roles, sessions, tokens, and the one policy.

Start reading with ``viewer``: every request has one viewer. ``policy`` decides what a viewer may
see; ``jobsight.store.read.visibility`` is that decision as a condition of a query.
"""
