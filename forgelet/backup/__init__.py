"""Backups of a whole instance, which may be running, and their restoration into an empty place (docs/backup.md)."""
