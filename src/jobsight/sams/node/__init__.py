"""Compatibility with SAMS on compute nodes: the collector of one job.

Start with :mod:`collector`; :mod:`settings` reads a site's YAML file and loads the modules it
names, and :mod:`plugins` runs a site's own SAMS modules. Imports only what an agent needs.
"""
