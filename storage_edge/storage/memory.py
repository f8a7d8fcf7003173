"""The memory tier: the responses that were used last, with the bodies that are small."""

from collections.abc import Mapping
from typing import Final

import attrs
import cachetools

from storage_edge.rules import selection
from storage_edge.storage.bodies import MemoryBody
from storage_edge.storage.purges import Purge
from storage_edge.storage.stored_responses import StoredResponse

#: What an entry costs in memory beside its body, about.
ENTRY_OVERHEAD: Final = 4096
#: Stored answers of one target that differ by Vary.
MAX_VARIANTS: Final = 16

Variants = tuple[StoredResponse, ...]


class _Kept(cachetools.LRUCache[str, Variants]):
    """Counts what leaves for want of room."""

    evicted = 0

    def popitem(self) -> tuple[str, Variants]:
        self.evicted += 1
        return super().popitem()


class MemoryTier:
    """Responses by target, at most `limit` bytes with their bodies."""

    def __init__(self, limit: int) -> None:
        self._kept = _Kept(limit, getsizeof=_weight)

    def __len__(self) -> int:
        """Targets of which something is here."""
        return len(self._kept)

    def __contains__(self, target: str) -> bool:
        """Whether anything is here of a target."""
        return target in self._kept

    @property
    def used(self) -> int:
        """Bytes of it all."""
        return int(self._kept.currsize)

    @property
    def limit(self) -> int:
        """Most bytes."""
        return int(self._kept.maxsize)

    @property
    def evicted(self) -> int:
        """How many targets had to leave for others."""
        return self._kept.evicted

    def resize(self, limit: int) -> None:
        """From now on there are at most so many bytes; what was used last stays."""
        if limit == self.limit:
            return
        old, self._kept = self._kept, _Kept(limit, getsizeof=_weight)
        self._kept.evicted = old.evicted
        entries = []
        while old:
            entries.append(old.popitem())
        for target, variants in reversed(entries):
            if self.used + _weight(variants) <= limit:
                self.put(target, variants)
            else:
                self._kept.evicted += 1

    def get(self, target: str) -> Variants:
        """All of a target, the newest first."""
        return self._kept.get(target, ())

    def find(self, target: str, request: Mapping[str, str]) -> StoredResponse | None:
        """The response that a request with these fields selects."""
        for stored in self._kept.get(target, ()):
            if not stored.selected or selection.matches(stored.selected, request):
                return stored
        return None

    def put(self, target: str, variants: Variants) -> None:
        """These are all of a target from now on, if there is room for them."""
        self._kept.pop(target, None)
        if variants and _weight(variants) <= self.limit:
            self._kept[target] = variants

    def replace(self, stored: StoredResponse) -> None:
        """Instead of what the same requests select."""
        others = tuple(s for s in self.get(stored.target) if s.selected != stored.selected)
        self.put(stored.target, (stored, *others)[:MAX_VARIANTS])

    def drop(self, stored: StoredResponse) -> None:
        """Nothing is selected instead of it."""
        self.put(stored.target, tuple(s for s in self.get(stored.target) if s.selected != stored.selected))

    def weigh(self, target: str) -> None:
        """A body of this target has become heavier."""
        self.put(target, self.get(target))

    def obey(self, purge: Purge) -> int:
        """Carries out a purge; how many responses it hit."""
        hit = 0
        for target, variants in list(self._kept.items()):
            concerned = [s for s in variants if purge.concerns(s)]
            if concerned:
                hit += len(concerned)
                kept = [s for s in variants if s not in concerned]
                if purge.soft:
                    kept += [attrs.evolve(s, stale=True) for s in concerned]
                self.put(target, tuple(kept))
        return hit

    def targets(self) -> list[str]:
        """All of which something is here now."""
        return list(self._kept)


def _weight(variants: Variants) -> int:
    return sum(ENTRY_OVERHEAD + _resident(stored) for stored in variants)


def _resident(stored: StoredResponse) -> int:
    return stored.body.resident if isinstance(stored.body, MemoryBody) else 0
