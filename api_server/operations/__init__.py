"""What an operator sees: what fails and why, figures over time, background tasks."""
