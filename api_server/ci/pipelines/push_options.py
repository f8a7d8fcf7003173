"""What `git push -o` says about the pipelines of a push: `ci.skip` and `ci.variable="NAME=value"`. Pure."""

import re
from collections.abc import Iterable, Mapping

import attrs

_KEY = re.compile(r"[A-Za-z0-9_]{1,255}", re.ASCII)


@attrs.frozen
class Wishes:
    """`skip` makes skipped pipelines; `variables` are given to those that run."""

    skip: bool = False
    variables: Mapping[str, str] = attrs.field(factory=dict)


def wishes(options: Iterable[str]) -> Wishes:
    """What options mean; others, and variables that cannot be one, are passed over. Of one name the last counts."""
    skip, variables = False, {}
    for option in options:
        name, _, value = option.partition("=")
        key, assigned, text = value.partition("=")
        if name == "ci.skip":
            skip = True
        elif name == "ci.variable" and assigned and _KEY.fullmatch(key) and "\0" not in text:
            variables[key] = text
    return Wishes(skip, variables)
