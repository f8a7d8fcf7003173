"""Where responses are kept, and what purges took away: memory, disk and a shared object store."""
