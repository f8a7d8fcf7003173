"""CI/CD variables of projects, groups and the instance."""
