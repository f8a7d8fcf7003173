"""schemathesis over the API's description, against a forgelet of its own: `scripts/fuzz/run`."""
