"""Invitations of people to groups and projects by address or user id (endpoints 31 to 34)."""
