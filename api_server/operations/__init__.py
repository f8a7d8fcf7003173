"""Information for operators: current failures and their reasons, figures over time, background tasks."""
