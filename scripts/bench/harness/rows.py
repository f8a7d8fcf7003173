"""What a row of the bench is: a name, what it measures, beside whom, and what is wanted of it."""

from collections.abc import Callable, Mapping

import attrs

from scripts.bench.harness.bench import Bench


class NotMeasured(Exception):
    """What is compared with is missing on this machine; the text is one sentence that says what."""


@attrs.frozen
class Sample:
    """One round: a `value` in the row's unit, and the processor's microseconds that a unit of work took on the side of
    the server, where that is known."""

    value: float
    cpu: float | None = None


#: Measures for about so many seconds; what counts work instead of time does not look at them.
Measure = Callable[[float], Sample]
#: By name, ours first under OURS; one that cannot be measured is the reason in its place.
Sides = Mapping[str, Measure | NotMeasured]

OURS = "forgelet"


@attrs.frozen
class Row:
    """`aims` are the least shares of the others' figures that are wanted, by their names; `most` is the greatest value
    of our own. A share is ours / theirs where more is better, and theirs / ours where less is."""

    name: str
    what: str
    sides: Callable[[Bench], Sides]
    unit: str = "requests/s"
    aims: Mapping[str, float] = attrs.field(factory=dict)
    most: float | None = None
    less_is_better: bool = False
    #: Rounds of rows that take long; fewer than are asked for.
    most_rounds: int | None = None
    warmed_up: bool = True
