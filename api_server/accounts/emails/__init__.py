"""Addresses that users have beside the one of their account."""
