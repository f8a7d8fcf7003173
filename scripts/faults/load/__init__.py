"""The load: what people, programs and runners do with a forgelet all day.

A worker does one thing after the other (`once`); every write has an identity, and what has become of it is recorded
under that. When all is over, `present` says how often each identity is found, whole and unchanged.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Protocol

#: After which what a killed server had in hand is done by another.
TAKEN_SECONDS = 60.0
#: By kind, how often each identity is there.
Present = Mapping[str, "Counter[str]"]


class Worker(Protocol):
    @property
    def rest(self) -> float:
        """Seconds between two things that it does."""

    @property
    def pulse(self) -> tuple[str, ...]:
        """Kinds of which each fault has to be followed by a success."""

    async def prepare(self) -> None:
        """Before the first fault."""

    async def once(self) -> None:
        """Does its next thing; never raises for what a fault can do to it."""

    async def present(self) -> Present:
        """After the last fault, when nobody else works any more."""
