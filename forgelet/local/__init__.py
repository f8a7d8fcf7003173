"""forgelet on one machine: an embedded PostgreSQL, both processes, demo data and a runner."""
