"""Pipelines and their jobs: creating them from a commit, running their jobs in order, and the resulting
states.

Read in this order: `states` (the table of transitions, and pure rules for the status of many jobs and for the
next jobs), `transitions` (all changes of a job's state in the caller's transaction, and the actions of
users), `creation` (creating a pipeline).
"""
