"""Git over HTTP: clone, fetch and push at `/<path>.git` (smart protocol)."""
