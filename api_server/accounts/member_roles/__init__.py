"""Custom roles: names of their own for the levels that members have."""
