"""How long each operation keeps a processor busy, as it was measured (`times.toml`)."""

import tomllib
from importlib import resources
from random import Random
from typing import Any

import attrs
import cattrs

#: Of the spread of service times nothing was measured: gamma with this shape, whose deviation is half of its mean.
SHAPE = 4


@attrs.frozen
class Times:
    """Milliseconds of a processor: of the API process, of PostgreSQL, and of who asks, where that is the same machine.
    `other` is what the answer takes beside them on an idle machine, in which nobody's processor works."""

    api: float
    database: float
    other: float = 0.0
    client: float = 0.0


def measured() -> dict[str, Times]:
    """By operation."""
    text = resources.files("scripts.bench.simulating").joinpath("times.toml").read_text()
    found: dict[str, Any] = tomllib.loads(text)
    return cattrs.structure(found["times"], dict[str, Times])


def drawn(random: Random, milliseconds: float) -> float:
    """Seconds around that mean."""
    return random.gammavariate(SHAPE, milliseconds / 1000 / SHAPE) if milliseconds else 0.0
