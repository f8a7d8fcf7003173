"""What was asked of the service while it was broken, and what it said: the one account that everything is held to."""

import time
from collections import Counter, defaultdict
from typing import Literal

import attrs

#: `unknown`: nobody can say whether it was done (cut, 503). `refused`: the service said that it was not.
Outcome = Literal["acknowledged", "unknown", "refused"]


@attrs.frozen
class Operation:
    """One write. `identity` is found again afterwards; `fault` is the number of the fault that was the newest then."""

    kind: str
    identity: str
    outcome: Outcome
    fault: int


@attrs.define
class Ledger:
    """Operations by kind, answers by fault, and what was wrong with any of them."""

    #: Number of the newest fault, from 1 on; 0 before the first.
    fault: int = 0
    operations: list[Operation] = attrs.field(factory=list)
    answers: "Counter[tuple[int, str]]" = attrs.field(factory=Counter)
    #: One text for each answer that may not be given, and each invariant that does not hold, by fault.
    findings: list[tuple[int, str]] = attrs.field(factory=list)
    #: What was found of each kind when all was over, by identity.
    present: dict[str, "Counter[str]"] = attrs.field(factory=dict)
    #: For each kind, when successes began and ended, on the monotonic clock.
    _successes: dict[str, list[tuple[float, float]]] = attrs.field(factory=lambda: defaultdict(list))

    def record(self, kind: str, identity: object, outcome: Outcome) -> None:
        self.operations.append(Operation(kind, str(identity), outcome, self.fault))

    def succeeded(self, kind: str, began: float) -> None:
        """Something of this kind that began then has just succeeded."""
        self._successes[kind].append((began, time.monotonic()))

    def find(self, text: str) -> None:
        """Something that may not be, as long as or after the newest fault lasted."""
        self.findings.append((self.fault, text))

    def first_success(self, kind: str, since: float) -> float | None:
        """When the first success of this kind ended that began after `since`."""
        ended = None
        for began, end in reversed(self._successes[kind]):
            if end < since:
                break
            if began >= since:
                ended = end
        return ended

    def lost(self) -> list[Operation]:
        """What was acknowledged and is not there."""
        return [one for one in self._judged() if one.outcome == "acknowledged" and self._times(one) == 0]

    def doubled(self) -> list[Operation]:
        """What was done more than once."""
        return [one for one in self._judged() if self._times(one) > 1]

    def _judged(self) -> list[Operation]:
        return [one for one in self.operations if one.kind in self.present]

    def _times(self, operation: Operation) -> int:
        return self.present[operation.kind][operation.identity]
