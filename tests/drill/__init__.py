"""The drill: faults of every part under the load of simulated agents, one row for each.

``python -m tests.drill`` (or ``make drill``) runs all of them and writes docs/drill.md. ``site.py``
has servers, databases and agents, ``relay.py`` a network that fails, ``faults.py`` the faults.
"""
