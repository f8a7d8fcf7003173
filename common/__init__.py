"""Code that the API server and the storage edge share because they must agree on it."""
