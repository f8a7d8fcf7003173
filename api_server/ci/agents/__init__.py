"""Cluster agents: each is registered in the project that holds its configuration, which grants it to jobs of
other projects."""
