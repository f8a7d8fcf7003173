"""CI/CD variables of projects and groups."""
