"""The rules of HTTP for a shared cache, as pure functions (RFC 9110, 9111, 9211, 9213 and 5861)."""
