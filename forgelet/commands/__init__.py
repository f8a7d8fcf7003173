"""The commands beside those that run something, one module for each group; `forgelet/command_line.py` names them."""
