"""A made-up site: users, scripts and a year of runs, with misbehaviour whose truth is known.

``site.py`` has clusters, nodes and people, ``works.py`` the scripts and their habits, ``plan.py``
what one run does over its time, ``misbehaviour.py`` the ways in which a run goes wrong.
``records.py`` turns a plan into the records that a scheduler and agents would have sent,
``year.py`` puts all runs into their order, and ``fill.py`` writes them to a store. Everything
follows from one random seed. ``nodes.py`` and ``agents.py`` are simulated agents that send to a
real server, and ``check.py`` compares what they wrote with what it stored.

Start with plan.py and misbehaviour.py.
"""
