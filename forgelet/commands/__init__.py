"""The commands other than those that run a server, one module for each group. `forgelet/command_line.py` names them."""
