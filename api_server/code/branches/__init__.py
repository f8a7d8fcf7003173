"""Protected branches: who may push to and merge into which branches."""
