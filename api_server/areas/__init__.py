"""The six areas of the service."""
