"""The storage edge: a caching proxy for the raw files and archives of repositories."""
