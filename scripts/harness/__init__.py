"""What the tools that measure, attack and break a forgelet of their own have in common."""
