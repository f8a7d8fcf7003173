"""Remote (push) mirrors: endpoints 19 to 24."""
