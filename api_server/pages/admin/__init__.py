"""Pages for administrators, below /admin."""
