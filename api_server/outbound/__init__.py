"""Outgoing connections: rules for URLs and addresses, checked when they are saved and again when connecting;
storage edges; mail."""
