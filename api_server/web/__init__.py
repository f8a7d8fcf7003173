"""Handling of requests, from reading them to answering them."""
