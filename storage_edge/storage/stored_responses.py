"""A stored response: everything that is needed to answer with it and to decide about it."""

import functools
import json
from typing import Any

import attrs
from multidict import CIMultiDict, CIMultiDictProxy

from storage_edge.rules import coding, selection, storing
from storage_edge.rules.freshness import Policy, Times
from storage_edge.rules.selection import Selection
from storage_edge.storage.bodies import Body, MemoryBody


@attrs.define(eq=False)
class Rendered:
    """A formatted answer from memory, complete except for the id of its request at the end of `head`. It is valid from
    `since` until before `until` (seconds since 1970), when its Age changes or it becomes stale."""

    head: bytes
    body: MemoryBody
    status: str
    since: float
    until: float


@attrs.frozen(eq=False)
class StoredResponse:
    """One response. Its `target` is the target URI: the origin and the canonical request target.

    `headers` are all end-to-end fields of the origin, including those for the edge alone. A `private` response is
    reused only after the origin has validated it for the user who asks. `epoch` is the ledger's when its origin
    request began. `stale` is set by a soft purge.
    """

    target: str
    status: int
    reason: str
    headers: CIMultiDictProxy[str]
    times: Times
    policy: Policy
    selected: Selection
    private: bool
    epoch: int
    body: Body
    stale: bool = False
    #: The last answer for clients that accept gzip (True), and for those that do not.
    rendered: dict[bool, Rendered] = attrs.field(init=False, factory=dict, repr=False)
    _compressed: "list[StoredResponse]" = attrs.field(init=False, factory=list, repr=False)

    @functools.cached_property
    def client_fields(self) -> CIMultiDict[str]:
        """The fields of `headers` for clients, computed when they are first needed."""
        return storing.for_clients(self.headers)

    @functools.cached_property
    def head(self) -> bytes:
        """The beginning of a 200 from memory, formatted once. Age and Cache-Status follow."""
        return storing.head_of_200(self.client_fields, self.body.length or 0, self.times.received)

    @functools.cached_property
    def is_public_text(self) -> bool:
        """Whether the response may also have a compressed representation."""
        return not self.private and coding.is_text(self.status, self.headers)

    @functools.cached_property
    def varying(self) -> "StoredResponse":
        """The same response with fields that announce another representation."""
        return attrs.evolve(self, headers=CIMultiDictProxy(coding.varying(self.headers)))

    def compressed(self, body: MemoryBody) -> "StoredResponse":
        """Return the compressed representation, created once."""
        if not self._compressed or self._compressed[0].body is not body:
            headers = CIMultiDictProxy(coding.coded(self.headers))
            self._compressed[:] = [attrs.evolve(self, headers=headers, body=body)]
        return self._compressed[0]

    @functools.cached_property
    def surrogate_keys(self) -> frozenset[str]:
        """The names by which the response can be purged, computed once because every purge uses them."""
        return storing.surrogate_keys(self.headers)

    def is_same(self, other: "StoredResponse") -> bool:
        """Return whether both are the same answer of the origin, wherever its body is. Equal times are not enough,
        because other responses may have the same."""
        own = (self.status, self.times, self.selected, self.headers)
        return own == (other.status, other.times, other.selected, other.headers)

    def may_be_displaced_by(self, status: int) -> bool:
        """Return whether a response with this status replaces it (see `storing.may_displace`)."""
        return storing.may_displace(status, self.status, stored_is_private=self.private)

    @property
    def conditions(self) -> dict[str, str]:
        """Return the request fields that ask the origin whether the response is still valid."""
        return selection.conditions_for(self.headers)

    def age(self, now: float) -> float:
        """Return the current age in seconds. A soft purge makes it stale whatever its lifetime is."""
        age = self.times.current_age(now)
        return max(age, self.policy.lifetime) if self.stale else age

    def to_json(self) -> str:
        """Return what the disk tier's index stores in addition to target, selection and body."""
        return json.dumps(
            {
                "status": self.status,
                "reason": self.reason,
                "headers": list(self.headers.items()),
                "times": attrs.asdict(self.times, recurse=False),
                "policy": {
                    **attrs.asdict(self.policy, recurse=False),
                    "hidden_fields": sorted(self.policy.hidden_fields),
                },
                "private": self.private,
            }
        )

    @classmethod
    def from_json(
        cls, text: str, *, target: str, selected: Selection, epoch: int, body: Body, stale: bool
    ) -> "StoredResponse":
        """Decode the result of `to_json`."""
        document: dict[str, Any] = json.loads(text)
        policy = {**document["policy"], "hidden_fields": frozenset(document["policy"]["hidden_fields"])}
        return cls(
            target=target,
            status=document["status"],
            reason=document["reason"],
            headers=CIMultiDictProxy(CIMultiDict((name, value) for name, value in document["headers"])),
            times=Times(**document["times"]),
            policy=Policy(**policy),
            selected=selected,
            private=document["private"],
            epoch=epoch,
            body=body,
            stale=stale,
        )


def selection_key(selected: Selection) -> str:
    """Return a selection as text, for the index."""
    return json.dumps(selected) if selected else "[]"


def selection_from_key(text: str) -> Selection:
    """Decode the result of `selection_key`."""
    return tuple((name, value) for name, value in json.loads(text))
