"""Settings: their definition, their files and the default paths.

Read ``settings`` first (every setting with its type and default), then ``load`` (files and
environment variables), ``convert`` (the validator, also used for the files of SAMS) and ``paths``
(default directories).
"""
