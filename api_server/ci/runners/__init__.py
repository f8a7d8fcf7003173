"""Runners: the programs that run jobs, how they register, and how jobs are handed out to them."""
