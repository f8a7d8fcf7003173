"""Runs of schemathesis with the API's description against a forgelet of its own: `scripts/fuzz/run`."""
