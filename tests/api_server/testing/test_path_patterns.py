"""Patterns of paths: which paths fit them, and that none takes long to try."""

import itertools
import re

import pytest

from api_server.testing.steering import fits

_MEANING = {"**": ".*", "*": "[^/]*", "?": "[^/]"}


def plainly(pattern: str, path: str) -> bool:
    """As the documents say it, however long that takes."""
    parts = re.split(r"(\*\*|\*|\?)", pattern)
    expression = "".join(_MEANING.get(part) or re.escape(part) for part in parts)
    return re.fullmatch(expression, path) is not None


def test_they_mean_what_the_documents_say() -> None:
    paths = ["".join(path) for size in range(5) for path in itertools.product("ab/", repeat=size)]
    for parts in itertools.product(("a", "/", "?", "*", "**"), repeat=4):
        pattern = "".join(parts)
        assert [fits(pattern, path) for path in paths[::3]] == [plainly(pattern, path) for path in paths[::3]]


@pytest.mark.parametrize(
    "pattern", ["*****/x", "/" + "a*" * 400 + "b", "**a*" * 200 + "b", "**" * 300 + "x", "**a*a*a*b**a*a*a*c"]
)
def test_none_takes_for_ever(pattern: str) -> None:
    assert not fits(pattern, "/" + "a" * 5_000)
