"""The cache: decides what is answered from storage and what is requested from the origin."""
