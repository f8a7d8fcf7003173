"""forgelet, the command line: what an operator types."""
