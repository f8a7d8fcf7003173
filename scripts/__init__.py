"""What a developer or operator runs from a checkout; nothing of it is installed."""
