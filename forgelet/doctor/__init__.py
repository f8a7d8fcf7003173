"""The command `forgelet doctor`, which checks everything that the service needs and reports problems with remedies.

There is one module for each kind of check. A check is a coroutine function that takes a `DiagnosedInstance` and returns
its findings.
"""
