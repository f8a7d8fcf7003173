"""Pages for people: signing in, and answering invitations. Plain HTML forms, no JavaScript."""
