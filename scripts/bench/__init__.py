"""Measurements of speed, each as a share of what a known program reaches with the same work in the same run."""
