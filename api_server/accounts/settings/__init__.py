"""The instance's settings that administrators change while it runs, under GitLab's keys."""
