"""Abuse of a whole forgelet on this machine, and what an innocent client beside it feels of that."""
