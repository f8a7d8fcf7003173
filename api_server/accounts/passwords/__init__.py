"""Passwords that are set through a link in a mail."""
