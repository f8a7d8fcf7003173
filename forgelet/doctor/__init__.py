"""The command `forgelet doctor`: checks everything that the service needs, and says what is wrong and what to do.

There is one module for each kind of check. A check is a coroutine function that takes a `DiagnosedInstance` and returns
its findings.
"""
