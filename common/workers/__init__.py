"""Several processes that serve as one: who keeps them, what each knows of itself, and what they count together."""
