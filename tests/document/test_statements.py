"""Parts of the document of which each sentence has a test."""

import re

import pytest

from . import test_invitations, test_mirrors, test_static_objects
from .statements import SAID, section

#: Importing them says which sentences they try.
AREAS = (test_invitations, test_mirrors, test_static_objects)
#: The heads of tables, names of rows, and sentences that say that nothing is said.
_SAYS_NOTHING = re.compile(
    r"""^\|.*\|\n\|[-|]+\|$                            # the head of a table
    | ^\|[\s|]*(\d+[\s|]*)?(`?[A-Z]+`?\ `[^`|]*`)?[\s|]*$  # a row: its number, method and path
    | ^\d+\.\s*$                                       # the number of a list's item
    | [^.|]*\bnot\ shown(\.|[\s|]*$)?
    | No\ other\ states\ are\ described\.
    | Behavior\ of\ the\ service:
    """,
    re.VERBOSE | re.MULTILINE,
)


@pytest.mark.parametrize(
    ("heading", "within"),
    [
        ("### Static objects with external storage (self-managed only)", "Endpoints"),
        ("### Remote mirrors", "Endpoints"),
        ("### Remote mirror", "States and transitions"),
        ("### Remote mirror", "Resources and their fields"),
        ("### Invitations", "Endpoints"),
        ("### Invitation", "States and transitions"),
        ("### Invitation", "Resources and their fields"),
    ],
)
def test_no_sentence_is_without_a_test(heading: str, within: str) -> None:
    left = section(heading, within)
    for sentence in sorted({one for said in SAID.values() for one in said}, key=len, reverse=True):
        left = left.replace(sentence, "")
    assert _SAYS_NOTHING.sub("", left).split() == []
