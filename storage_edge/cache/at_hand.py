"""What answers requests without a token from memory at once: nobody is asked, and nothing is waited for."""

from collections.abc import Callable

import attrs

from storage_edge.cache.answer import FromStore, from_store, hit
from storage_edge.cache.flights import Flights
from storage_edge.cache.representations import Representations
from storage_edge.request_rules import EdgeRequest
from storage_edge.rules import reuse
from storage_edge.rules.reuse import Reuse
from storage_edge.tiers.bodies import MemoryBody
from storage_edge.tiers.store import Store
from storage_edge.tiers.stored_responses import StoredResponse


@attrs.frozen
class AtHand:
    """What is in memory. `clock` gives seconds since 1970."""

    store: Store
    flights: Flights
    representations: Representations
    clock: Callable[[], float]

    def stored(self, request: EdgeRequest) -> StoredResponse | None:
        """What a request selects, if no flight brings something newer. No purge has concerned it."""
        self.store.catch_up()
        if self.flights.get(request.uri) is not None:
            return None
        return self.store.memory.find(request.uri, request.forwarded)

    def answer(self, request: EdgeRequest, stored: StoredResponse) -> FromStore | None:
        """The answer with `stored` to a request without a token, if it is for everybody and nobody has to be asked."""
        if stored.private or not isinstance(stored.body, MemoryBody):
            return None
        age = stored.age(self.clock())
        if reuse.decide(stored.policy, age, request.directives) is not Reuse.USE:
            return None
        return self.representations.at_hand(request, from_store(stored, hit(stored, age)))

    def used(self, request: EdgeRequest) -> None:
        """What is stored has answered a request."""
        self.store.used(request.uri)
