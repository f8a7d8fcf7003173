"""Mail to people: what it looks like, and how it leaves the service."""
