"""Our end of a client's connection: what comes in, and how answers go out."""
