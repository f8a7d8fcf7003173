"""What a program needs that tests against forgelet: the standard library, and nothing of the server.

`forgelet.pytest` uses this; other frameworks' tests may too (docs/testing.md).
"""
