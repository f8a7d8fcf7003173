"""What grows with the tables: the same work on a database of 200,000 and of 10,000,000 jobs and audit events."""
