"""Agents of clusters: registered in the project that has their configuration, granted to the jobs of others there."""
