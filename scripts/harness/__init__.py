"""Functions that the tools share that measure, attack and break a forgelet of their own."""
