"""Protected tags: who may make which tags."""
