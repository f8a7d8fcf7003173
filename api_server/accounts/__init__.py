"""Accounts: users, their addresses and tokens, custom roles, and the instance's settings."""
