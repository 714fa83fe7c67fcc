"""The ``jobsight`` command, one module per subcommand.

Read ``main`` first (the table of commands), then ``arguments`` (parsing) and ``output`` (tables,
JSON, progress). A module is imported only when its command runs. ``compat`` holds the commands of
SAMS and petricore.
"""
