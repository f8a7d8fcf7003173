"""What a password may be, in GitLab's words."""

SHORTEST, LONGEST = 8, 128


def problem_with(password: str) -> str | None:
    """Why that cannot be a password, as it goes on after the word; or None."""
    if len(password) < SHORTEST:
        return f"is too short (minimum is {SHORTEST} characters)"
    if len(password) > LONGEST:
        return f"is too long (maximum is {LONGEST} characters)"
    return None
