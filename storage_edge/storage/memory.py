"""The memory tier: the most recently used responses with small bodies."""

from collections.abc import Mapping
from typing import Final

import attrs
import cachetools

from storage_edge.rules import selection
from storage_edge.storage.bodies import MemoryBody
from storage_edge.storage.purges import Purge
from storage_edge.storage.stored_responses import StoredResponse

#: The approximate memory of an entry in addition to its body.
ENTRY_OVERHEAD: Final = 4096
#: The most stored responses of one target that differ by Vary.
MAX_VARIANTS: Final = 16

Variants = tuple[StoredResponse, ...]


class _CountingCache(cachetools.LRUCache[str, Variants]):
    """An LRU cache that counts evictions."""

    evicted = 0

    def popitem(self) -> tuple[str, Variants]:
        self.evicted += 1
        return super().popitem()


class MemoryTier:
    """Responses by target, with their bodies at most `limit` bytes."""

    def __init__(self, limit: int) -> None:
        self._variants = _CountingCache(limit, getsizeof=_weight)

    def __len__(self) -> int:
        """Return the number of targets."""
        return len(self._variants)

    def __contains__(self, target: str) -> bool:
        """Return whether there are responses of a target."""
        return target in self._variants

    @property
    def used(self) -> int:
        """The bytes of all entries."""
        return int(self._variants.currsize)

    @property
    def limit(self) -> int:
        """The limit in bytes."""
        return int(self._variants.maxsize)

    @property
    def evicted(self) -> int:
        """The number of targets that were evicted."""
        return self._variants.evicted

    def resize(self, limit: int) -> None:
        """Change the limit, and keep the most recently used responses."""
        if limit == self.limit:
            return
        old, self._variants = self._variants, _CountingCache(limit, getsizeof=_weight)
        self._variants.evicted = old.evicted
        entries = []
        while old:
            entries.append(old.popitem())
        for target, variants in reversed(entries):
            if self.used + _weight(variants) <= limit:
                self.put(target, variants)
            else:
                self._variants.evicted += 1

    def get(self, target: str) -> Variants:
        """Return all responses of a target, the newest first."""
        return self._variants.get(target, ())

    def find(self, target: str, request: Mapping[str, str]) -> StoredResponse | None:
        """Return the response that a request with these fields selects."""
        for stored in self._variants.get(target, ()):
            if not stored.selected or selection.matches(stored.selected, request):
                return stored
        return None

    def put(self, target: str, variants: Variants) -> None:
        """Set all responses of a target, if there is room for them."""
        self._variants.pop(target, None)
        if variants and _weight(variants) <= self.limit:
            self._variants[target] = variants

    def replace(self, stored: StoredResponse) -> None:
        """Store a response in place of the one that the same requests select."""
        others = tuple(s for s in self.get(stored.target) if s.selected != stored.selected)
        self.put(stored.target, (stored, *others)[:MAX_VARIANTS])

    def drop(self, stored: StoredResponse) -> None:
        """Remove a response."""
        self.put(stored.target, tuple(s for s in self.get(stored.target) if s.selected != stored.selected))

    def weigh(self, target: str) -> None:
        """Update the size of a target whose body has grown."""
        self.put(target, self.get(target))

    def obey(self, purge: Purge) -> int:
        """Carry out a purge. Return how many responses it hit."""
        hit = 0
        for target, variants in list(self._variants.items()):
            concerned = [s for s in variants if purge.concerns(s)]
            if concerned:
                hit += len(concerned)
                remaining = [s for s in variants if s not in concerned]
                if purge.soft:
                    remaining += [attrs.evolve(s, stale=True) for s in concerned]
                self.put(target, tuple(remaining))
        return hit

    def targets(self) -> list[str]:
        """Return all targets."""
        return list(self._variants)


def _weight(variants: Variants) -> int:
    return sum(ENTRY_OVERHEAD + _resident(stored) for stored in variants)


def _resident(stored: StoredResponse) -> int:
    return stored.body.resident if isinstance(stored.body, MemoryBody) else 0
