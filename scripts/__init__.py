"""Programs that a developer or operator runs from a checkout; none of them is installed."""
