"""Audit events: reading them (endpoints 25-30), and what operators do with them."""
