"""Visibility levels, from least to most."""

from typing import Literal, get_args

Visibility = Literal["private", "internal", "public"]
LEVELS: tuple[Visibility, ...] = get_args(Visibility)


def exceeds(visibility: str, limit: str) -> bool:
    """Whether `visibility` shows more than `limit` allows."""
    return LEVELS.index(visibility) > LEVELS.index(limit)
