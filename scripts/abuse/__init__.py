"""Attacks on a whole forgelet on this machine, and measurements of how they affect another client."""
