"""The client side of the edge: incoming requests and outgoing answers."""
