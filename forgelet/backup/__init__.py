"""Backups of a whole instance, made while it runs, and restored into an empty place (docs/backup.md)."""
