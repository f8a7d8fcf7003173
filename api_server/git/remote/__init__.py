"""Other people's repositories: how git reaches one, lists what it has and pushes to it. Nothing is ever fetched."""
