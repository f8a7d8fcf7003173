"""Whether a stored response may answer a request now (RFC 9111 section 4, 4.2.4, 5.2.1; RFC 5861)."""

import enum

import attrs

from storage_edge.rules import fields
from storage_edge.rules.freshness import Policy


class Reuse(enum.Enum):
    """What to do with a stored response that was selected for a request."""

    USE = enum.auto()
    USE_AND_VALIDATE = enum.auto()
    VALIDATE = enum.auto()


@attrs.frozen
class RequestDirectives:
    """What the client wants (section 5.2.1); seconds, None where it said nothing."""

    max_age: int | None = None
    max_stale: int | None = None
    min_fresh: int | None = None
    no_cache: bool = False
    no_store: bool = False
    only_if_cached: bool = False


NOTHING_ASKED = RequestDirectives()


def request_directives(cache_control: list[str]) -> RequestDirectives:
    """Reads the Cache-Control lines of a request; `Pragma` is deprecated and does not count (5.4)."""
    if not cache_control:
        return NOTHING_ASKED
    given = fields.directives(cache_control)
    stale = fields.seconds(given.get("max-stale")) if given.get("max-stale") else fields.MAX_SECONDS
    return RequestDirectives(
        max_age=fields.seconds(given.get("max-age")),
        max_stale=stale if "max-stale" in given else None,
        min_fresh=fields.seconds(given.get("min-fresh")),
        no_cache="no-cache" in given,
        no_store="no-store" in given,
        only_if_cached="only-if-cached" in given,
    )


def decide(policy: Policy, age: float, asked: RequestDirectives = NOTHING_ASKED) -> Reuse:
    """For a shared response of this policy and current age. A private one is always validated, elsewhere."""
    if (
        policy.validate
        or (policy.no_store and not policy.must_understand)
        or asked.no_cache
        or asked.no_store
    ):
        return Reuse.VALIDATE
    if asked.max_age is not None and (age > asked.max_age or asked.max_age == 0):
        return Reuse.VALIDATE
    if policy.lifetime - age > (asked.min_fresh or 0):
        return Reuse.USE
    stale_by = age - policy.lifetime
    if policy.strict or asked.min_fresh is not None:
        return Reuse.VALIDATE
    if asked.max_stale is not None and stale_by <= asked.max_stale:
        return Reuse.USE
    if 0 <= stale_by < policy.stale_while_revalidate and asked.max_age is None:
        return Reuse.USE_AND_VALIDATE
    return Reuse.VALIDATE


def may_use_on_error(policy: Policy, age: float, *, when_unreachable: float = 0.0) -> bool:
    """Whether a stale response may stand in for a failed origin (`stale-if-error`, RFC 5861 section 4).

    `when_unreachable` is the operator's own allowance in seconds, for responses that do not forbid it (4.2.4).
    """
    return not policy.strict and age - policy.lifetime <= max(policy.stale_if_error, when_unreachable)
