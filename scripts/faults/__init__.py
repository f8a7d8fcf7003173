"""Faults of a whole forgelet on this machine, and what becomes of the work that goes on meanwhile."""
