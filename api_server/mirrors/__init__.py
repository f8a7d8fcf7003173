"""Remote (push) mirrors, endpoints 19-24."""
