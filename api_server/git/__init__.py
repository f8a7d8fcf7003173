"""The only code that touches git."""
