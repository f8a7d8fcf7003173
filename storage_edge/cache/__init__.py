"""The cache, which decides whether a request is answered from storage or from the origin."""
