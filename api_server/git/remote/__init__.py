"""Access to remote repositories: listing their refs and pushing to them. Nothing is ever fetched."""
