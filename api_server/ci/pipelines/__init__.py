"""Pipelines and the life of their jobs: what is made from a commit, in which order it runs, what becomes of it.

Read in this order: `states` (the one table of transitions), `composite` and `order` (pure rules: the status of
many jobs, and which job is next), `changes` (everything that moves a job, each in the caller's transaction).
"""
