"""The decision: what is answered from what is stored, what is asked of the origin, and what is purged."""
