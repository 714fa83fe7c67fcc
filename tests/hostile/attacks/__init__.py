"""Attacks as programs: ``python -m tests.hostile.attacks.NAME --help``, in the project's directory.

| role | needs | programs |
|---|---|---|
| an ordinary user with a job | the standard library alone | storm, names, namespaces, scrapes |
| the same, on a file system that hangs | root, to mount it | stalled |
| a node with the token of its cluster | the token file | batches, uploads |
| a visitor without a token | the address | connections, requests |

Each ends after ``--seconds`` or on SIGTERM, draws everything at random from ``--seed``, and prints
one JSON object of what happened, by kind. The bounds of an attack are its options. Attacks over
the network come from an address of their own (``--source``), so that the limits for each address
can be seen to hold. tests/hostile/soak.py runs them on a real server and a real agent.
"""
