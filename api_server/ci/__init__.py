"""Pipelines and their jobs: the file that describes them, the runners that run them, endpoints 1 to 11."""
