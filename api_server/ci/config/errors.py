"""The error of this package, and the limit of the work that one configuration may cause."""

import itertools
from typing import Any

#: Maximum characters of a whole configuration; a shared text counts wherever it is used.
MAX_CHARACTERS = 32 * 1024 * 1024


#: Maximum nesting depth of lists and hashes.
MAX_DEPTH = 100

#: Maximum number of errors kept for one configuration, and maximum characters of each.
MAX_ERRORS = 100
MAX_ERROR = 10_000


class CiConfigError(Exception):
    """The configuration is refused. `errors` are sentences for its author (`yaml_errors`, CI lint), without
    duplicates and limited in number."""

    def __init__(self, *errors: str) -> None:
        shortened = (error if len(error) <= MAX_ERROR else error[:MAX_ERROR] + "..." for error in errors)
        self.errors = tuple(itertools.islice(dict.fromkeys(shortened), MAX_ERRORS))
        super().__init__("\n".join(self.errors))


class FilesNeeded(Exception):
    """Remote files have to be fetched before the configuration can be read; `urls` may contain secrets."""

    def __init__(self, urls: tuple[str, ...]) -> None:
        super().__init__("files have to be fetched")
        self.urls = urls


def too_deep() -> CiConfigError:
    return CiConfigError(f"The parsed YAML is too big: nested deeper than {MAX_DEPTH} levels")


class Budget:
    """The remaining budget of one pipeline's configuration, in YAML nodes and in characters after expansion.

    Aliases, `!reference` and `extends` let a few hundred bytes of text stand for billions of nodes, so each
    of them is charged for its expansion, from one budget for the file and all its includes. Characters are
    charged too, because a few nodes may be one long text in many places, which takes memory only when it is
    written out.
    """

    def __init__(self, nodes: int = 250_000, characters: int = MAX_CHARACTERS) -> None:
        self.remaining = nodes
        self._characters_left = characters

    def spend(self, nodes: int = 1, characters: int = 0) -> None:
        self.remaining -= nodes
        self._characters_left -= characters
        if self.remaining < 0:
            raise CiConfigError("The parsed YAML is too big")
        if self._characters_left < 0:
            raise CiConfigError(f"The parsed YAML is too big: more than {MAX_CHARACTERS} characters")

    def spend_on(self, value: Any) -> None:
        """Charge for a value with everything in it; shared parts count wherever they are used."""
        waiting = [(value, 0)]
        while waiting:
            inner, depth = waiting.pop()
            if depth > MAX_DEPTH:
                raise too_deep()
            self.spend(characters=len(inner) if isinstance(inner, str) else 0)
            if isinstance(inner, dict):
                self.spend(0, characters=sum(map(len, inner)))
                waiting.extend((item, depth + 1) for item in inner.values())
            elif isinstance(inner, list):
                waiting.extend((item, depth + 1) for item in inner)
