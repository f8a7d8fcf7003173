"""Users: accounts, made and changed by administrators."""
