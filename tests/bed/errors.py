"""What the bed says when it cannot go on: one clear sentence, then the logs that explain it."""


class BedError(Exception):
    """Something the bed was requested did not happen."""


class BedUnavailableError(BedError):
    """This machine cannot have a bed at all: no root, no packages, no cgroups. Tests skip on it."""
