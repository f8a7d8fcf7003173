"""`forgelet doctor`: looks at everything that the service needs, and says what is wrong and what to do.

One module per kind of check; each check is a coroutine function that takes the `DiagnosedInstance` and gives its
findings.
"""
