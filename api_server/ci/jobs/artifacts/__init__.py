"""Artifacts: files that jobs leave behind, uploaded by their runners, kept in the object store until they expire."""
