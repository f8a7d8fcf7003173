"""Audit events: reading (endpoints 25 to 30), and export, removal and verification by operators."""
