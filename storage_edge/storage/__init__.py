"""Storage of responses in memory, on disk and in a shared object store, and the purges that apply to all."""
