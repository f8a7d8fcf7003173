"""What the areas stand on."""
