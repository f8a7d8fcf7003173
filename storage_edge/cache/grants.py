"""Who has been allowed to read what a moment ago, where the operator lets that count for a while."""

import hashlib
from collections.abc import Callable

import cachetools

from storage_edge.request_rules import EdgeRequest
from storage_edge.settings import Settings

#: The newest that are remembered.
REMEMBERED = 65_536


class Grants:
    """A user's token and a target count for the entity tag that the origin has said 304 to; `clock` gives seconds since
    1970."""

    def __init__(self, settings: Settings, clock: Callable[[], float]) -> None:
        self._settings = settings
        self._clock = clock
        self._known: cachetools.LRUCache[tuple[str, bytes], tuple[str, float]] = cachetools.LRUCache(
            REMEMBERED
        )

    def has(self, request: EdgeRequest, tag: str) -> bool:
        """Whether the origin need not be asked."""
        granted, until = self._known.get(_key(request), ("", 0.0))
        return granted == tag and 0 < until - self._clock() <= self._settings.private_grace

    def add(self, request: EdgeRequest, tag: str) -> None:
        """The origin has said so just now."""
        if self._settings.private_grace > 0:
            self._known[_key(request)] = tag, self._clock() + self._settings.private_grace

    def clear(self) -> None:
        """Everybody is asked about again."""
        self._known.clear()


def _key(request: EdgeRequest) -> tuple[str, bytes]:
    return request.uri, hashlib.sha256((request.token or "").encode()).digest()
