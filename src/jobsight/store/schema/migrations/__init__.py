"""Alembic's revisions of the tables, one file each, in the order of their numbers."""
