"""forgelet on one machine: a PostgreSQL of its own, both processes, demo data."""
