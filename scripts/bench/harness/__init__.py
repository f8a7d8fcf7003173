"""How rows are measured: by turns, with the processor's time, and what becomes of the figures."""
