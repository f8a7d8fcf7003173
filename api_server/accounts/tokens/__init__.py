"""Personal access tokens: what a user's programs sign in with."""
