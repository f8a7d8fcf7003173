"""What the cache answers a request with: a stored response, one of the origin's, or nothing."""

import attrs

from storage_edge.cache.origin_response import OriginResponse
from storage_edge.request_rules import EdgeRequest
from storage_edge.rules import cache_status, selection
from storage_edge.rules.cache_status import Outcome
from storage_edge.tiers.bodies import Reader
from storage_edge.tiers.spool import Spool
from storage_edge.tiers.stored_responses import StoredResponse


@attrs.define(eq=False)
class FromStore:
    """Answer with a stored response, or one that is being stored; `reader` is open and has to be closed. It
    never changes, but freezing it would be a tenth of what a hit costs.
    """

    stored: StoredResponse
    outcome: Outcome
    reader: Reader
    is_new: bool = False

    def age_and_status(self, now: float) -> tuple[str, str]:
        """Values of Age and Cache-Status, which change at the same moments; `now` is seconds since 1970."""
        age = int(self.stored.age(now))
        ttl = None if self.is_new or self.stored.private else int(self.stored.policy.lifetime) - age
        return str(age), cache_status.value(self.outcome, stored=self.is_new, ttl=ttl)


@attrs.frozen
class FromOrigin:
    """Pass on a response of the origin that is not kept; it has to be read or closed."""

    response: OriginResponse
    outcome: Outcome


@attrs.frozen
class Missing:
    """`only-if-cached`, and nothing is (RFC 9111 section 5.2.1.7)."""

    outcome: Outcome = Outcome.ONLY_IF_CACHED


Answer = FromStore | FromOrigin | Missing


def hit(stored: StoredResponse, age: float) -> Outcome:
    if isinstance(stored.body, Spool) and not stored.body.finished:
        return Outcome.COLLAPSED
    return Outcome.HIT if age < stored.policy.lifetime else Outcome.STALE


def from_store(stored: StoredResponse, outcome: Outcome, *, is_new: bool = False) -> FromStore:
    return FromStore(stored, outcome, stored.body.open(), is_new)


def differ(stored: StoredResponse, new: StoredResponse) -> bool:
    """Whether a validation changed more than the time of the answer."""
    return any(
        stored.headers.getall(name, []) != new.headers.getall(name, [])
        for name in {*stored.headers, *new.headers} - {"Date", "Age"}
    )


def may_select(stored: StoredResponse, request: EdgeRequest) -> bool:
    """An answer other than 200 may be about who asked; whoever has a token asks for himself."""
    return request.token is None or stored.status == 200


def may_join(stored: StoredResponse, request: EdgeRequest) -> bool:
    """Whether what another request has brought answers this one as well."""
    return may_select(stored, request) and selection.matches(stored.selected, request.forwarded)
