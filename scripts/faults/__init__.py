"""Faults of a whole forgelet on this machine, and their effect on the work that goes on meanwhile."""
