"""Pipelines and the life of their jobs: what is made from a commit, in which order it runs, what becomes of it.

Read in this order: `states` (the one table of transitions, and pure rules: the status of many jobs, and which job is
next), `transitions` (everything that moves a job, in the caller's transaction, and what people do), `creation` (how a
pipeline is made).
"""
