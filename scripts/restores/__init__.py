"""Backs up services that run, wipes them, restores them, and holds every answer against the one before."""
