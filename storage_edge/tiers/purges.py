"""Purges: what must not be served any more, and the order of purges and stores."""

from collections import deque
from typing import Final, Protocol

import attrs
import cattrs

from common import static_paths

#: Purges that are remembered; what began before the oldest of them is not stored.
REMEMBERED: Final = 4096

#: Of one purge: all that is stored is held against each prefix, and URLs are parsed.
MOST: Final = {"keys": 10_000, "urls": 1_000, "prefixes": 100}


class PurgeRequestError(ValueError):
    """The body of a purge is not what it should be; the text says what is wrong."""


class Purgeable(Protocol):
    """What of a response a purge looks at."""

    @property
    def target(self) -> str:
        """Target URI."""

    @property
    def status(self) -> int:
        """Status code."""

    @property
    def surrogate_keys(self) -> frozenset[str]:
        """The origin's names for it."""


@attrs.frozen
class Purge:
    """What one purge concerns: surrogate keys, exact target URIs, and those that start with a prefix.

    A soft one makes responses stale instead of dropping them.
    """

    keys: frozenset[str] = frozenset()
    urls: frozenset[str] = frozenset()
    prefixes: tuple[str, ...] = ()
    soft: bool = False

    def concerns(self, response: Purgeable) -> bool:
        """Whether a response must not be used as it is any more.

        An answer like "not found" that bears no key may be about anything that a purge tells of, so every purge
        concerns it.
        """
        keys = response.surrogate_keys
        return (
            response.target in self.urls
            or response.target.startswith(self.prefixes)
            or not self.keys.isdisjoint(keys)
            or (response.status != 200 and not keys)
        )


#: Stands for purges of which nothing is known any more.
EVERYTHING: Final = Purge(prefixes=("",))


@attrs.frozen
class _PurgeBody:
    keys: list[str] = attrs.field(factory=list)
    urls: list[str] = attrs.field(factory=list)
    prefixes: list[str] = attrs.field(factory=list)
    soft: bool = False


_converter = cattrs.Converter(forbid_extra_keys=True)


@_converter.register_structure_hook
def _strict_str(value: object, _type: type[str]) -> str:
    if not isinstance(value, str) or not value or "\0" in value or not value.isprintable():
        raise ValueError
    return value


@_converter.register_structure_hook
def _strict_bool(value: object, _type: type[bool]) -> bool:
    if not isinstance(value, bool):
        raise TypeError
    return value


def parse(document: object, origin: str) -> Purge:
    """Reads the JSON document of `POST /-/purge`; raises `PurgeRequestError`.

    URLs may be full URLs or paths, with the parameters that count; prefixes are paths that begin with a slash. Both
    concern what is stored of `origin` (scheme, host and port); keys concern what bears them, whoever's it is.
    """
    if not isinstance(document, dict) or any(
        not isinstance(document.get(name, []), list) for name in ("keys", "urls", "prefixes")
    ):
        raise PurgeRequestError(
            "The body is a JSON object with lists keys, urls, prefixes and a boolean soft."
        )
    for name, most in MOST.items():
        if len(document.get(name, ())) > most:
            raise PurgeRequestError(f"A purge names {most} {name} at most.")
    try:
        body = _converter.structure(document, _PurgeBody)
    except Exception as error:
        raise PurgeRequestError(
            "The body is a JSON object with lists of strings keys, urls, prefixes and a boolean soft."
        ) from error
    if any(not prefix.startswith("/") for prefix in body.prefixes):
        raise PurgeRequestError("A prefix is a path that begins with a slash.")
    return Purge(
        keys=frozenset(body.keys),
        urls=frozenset(origin + _target(url) for url in body.urls),
        prefixes=tuple(origin + prefix for prefix in body.prefixes),
        soft=body.soft,
    )


def _target(url: str) -> str:
    try:
        return static_paths.parse(url).target
    except static_paths.StaticPathError as error:
        raise PurgeRequestError(f"A URL cannot be purged: {error}.") from None


class Ledger:
    """The purges of this edge in their order; `epoch` counts them.

    A response carries the epoch at which its origin request began; it may be stored or joined only if no
    purge since then concerns it.
    """

    def __init__(self, epoch: int = 0) -> None:
        self.epoch = epoch
        self._recent: deque[tuple[int, Purge]] = deque(maxlen=REMEMBERED)

    def record(self, epoch: int, purge: Purge) -> None:
        """Adds the purge that made `epoch`."""
        self.epoch = epoch
        self._recent.append((epoch, purge))

    def since(self, epoch: int) -> list[Purge] | None:
        """The purges after `epoch`; None when some of them are not remembered."""
        if epoch >= self.epoch:
            return []
        if not self._recent or self._recent[0][0] > epoch + 1:
            return None
        return [purge for number, purge in self._recent if number > epoch]

    def is_concerned(self, epoch: int, response: Purgeable) -> bool:
        """Whether a purge since `epoch` concerns a response, or might."""
        purges = self.since(epoch)
        return purges is None or any(purge.concerns(response) for purge in purges)
