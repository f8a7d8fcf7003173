"""The rows of the bench, a module for each group."""
