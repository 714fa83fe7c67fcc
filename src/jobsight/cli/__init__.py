"""The ``jobsight`` command: one file per subcommand, imported when it is asked for."""
