"""What the API server and the storage edge must agree on, and nothing else."""
