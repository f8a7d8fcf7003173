"""What is stored, page by page, for those who operate the edge: of the index, and of what is in memory."""

import heapq
import json
import sqlite3
from collections.abc import Iterable, Mapping
from typing import Final, Literal

import attrs

from storage_edge.tiers.memory import MemoryTier
from storage_edge.tiers.stored_responses import StoredResponse, selection_key

#: Most that is looked at for one page.
MOST: Final = 1000
#: Above every text that a target may be.
_LAST: Final = "\U0010ffff"

#: In the order of an index, so that a page costs as much as its length, however many responses there are.
PAGE: Final = (
    "SELECT target, selected, size, stale, response, coalesce(hits.count, 0)"
    " FROM responses JOIN bodies USING (digest) LEFT JOIN hits USING (target)"
    " WHERE (target, selected) > (:target, :selected) AND target < :end"
    " ORDER BY target, selected LIMIT :limit"
)


@attrs.frozen
class Listed:
    """One stored response. `selected` tells variants of one target apart; `age_then` was its age at `stored_at`; both
    are seconds, the latter since 1970.
    """

    target: str
    selected: str
    status: int
    bytes: int
    stored_at: float
    age_then: float
    lifetime: float
    stale: bool
    private: bool
    hits: int
    tier: Literal["memory", "disk"] = "disk"

    @property
    def place(self) -> tuple[str, str]:
        """Where it stands in the order of all."""
        return self.target, self.selected

    def age(self, now: float) -> float:
        """Seconds since the origin made or validated it."""
        return self.age_then + max(0.0, now - self.stored_at)

    @property
    def fresh_until(self) -> float | None:
        """Seconds since 1970; None where each use is validated, or it is stale by a purge."""
        if self.private or self.stale:
            return None
        return self.stored_at + self.lifetime - self.age_then


def page(index: sqlite3.Connection, prefix: str, after: tuple[str, str], limit: int) -> list[Listed]:
    """The next rows of the index; purges that have not been carried out on it yet are not looked at."""
    target, selected = max(after, (prefix, ""))  # one bound: the index is entered by one alone
    given = {"target": target, "selected": selected, "end": prefix + _LAST, "limit": limit}
    return [_of_row(*row) for row in index.execute(PAGE, given).fetchall()]


def first(targets: Iterable[str], prefix: str, after: tuple[str, str], limit: int) -> list[str]:
    """The targets of the next responses, from that of `after` on; one more than are wanted, which may have none."""
    return heapq.nsmallest(
        limit + 1, (target for target in targets if target >= after[0] and target.startswith(prefix))
    )


def of_memory(memory: MemoryTier, targets: Iterable[str], after: tuple[str, str]) -> list[Listed]:
    """The responses in memory of these targets, beyond `after`."""
    found = (_of_response(stored) for target in targets for stored in memory.get(target))
    return [one for one in found if one.place > after]


def merged(
    on_disk: Iterable[Listed], in_memory: Iterable[Listed], used: Mapping[str, int], limit: int
) -> list[Listed]:
    """One list; what is in both counts once. `used` are hits that the index has not been told of."""
    found = {one.place: one for one in on_disk}
    for one in in_memory:
        known = found.get(one.place)
        found[one.place] = attrs.evolve(one, hits=0 if known is None else known.hits)
    return [
        attrs.evolve(found[place], hits=found[place].hits + used.get(place[0], 0))
        for place in sorted(found)[:limit]
    ]


def _of_row(target: str, selected: str, size: int, stale: int, response: str, hits: int) -> Listed:
    try:
        kept = json.loads(response)
        times, policy, status, private = kept["times"], kept["policy"], kept["status"], kept["private"]
        received, lifetime = float(times["received"]), float(policy["lifetime"])
        age = max(0.0, received - times["date"], times["age"] + received - times["requested"])
    except (KeyError, TypeError, ValueError):  # damaged: it is dropped when it is asked for
        status, private, received, lifetime, age, stale = 0, False, 0.0, 0.0, 0.0, 1
    return Listed(target, selected, status, size, received, age, lifetime, bool(stale), bool(private), hits)


def _of_response(stored: StoredResponse) -> Listed:
    received = stored.times.received
    return Listed(
        target=stored.target,
        selected=selection_key(stored.selected),
        status=stored.status,
        bytes=stored.body.length or 0,
        stored_at=received,
        age_then=stored.times.current_age(received),
        lifetime=stored.policy.lifetime,
        stale=stored.stale,
        private=stored.private,
        hits=0,
        tier="memory",
    )
