"""State: the database, the object store, the queue, and what they have in common."""
