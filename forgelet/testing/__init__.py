"""A library for programs that test against forgelet. It needs only the standard library and nothing of the server.

`forgelet.pytest` uses it; tests with other frameworks can, too (docs/testing.md).
"""
