"""Pages for people: what a browser shows."""
