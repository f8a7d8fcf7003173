"""The decision: what is answered from what is stored, and what is asked of the origin."""
