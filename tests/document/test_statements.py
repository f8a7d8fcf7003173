"""Every sentence of the document has a test."""

import re
from importlib import import_module
from pathlib import Path

from .statements import DOCUMENT, SAID

#: Sentences without a test, and why.
NOT_TRIED = {
    "Self-managed only.": "whoever administers the service may set the storage, and nobody else",
    "Release notes in the reference:": "the features that follow are tried, not in which release they came",
}
#: Headings, heads of tables, names of rows, and sentences without a statement.
_SAYS_NOTHING = re.compile(
    r"""^\#.*$
    | ^\|.*\|\n\|[-|]+\|$                                           # the head of a table
    | ^\|[\s|]*(\d+[\s|]*)?(`?[A-Z]+`?\ `[^`|]*`)?[\s|]*$            # a row: its number, method and path
    | ^\|\ (CI\ jobs|External\ status\ checks|Remote\ mirrors|Audit\ events|Invitations)[\s|]*$
    | ^\|\ External\ storage\ for\ static\ objects[\s|]*$
    | ^(\d+\.|-)[ ]*$                                               # the mark of a list's item
    | [^.|]*\bnot\ shown(\.|[\s|]*$)?
    | No\ other\ states\ are\ described\.
    | no\ other\ outgoing\ notification\ is\ described\.
    | (General\ conventions|Behavior\ of\ the\ service|Payload\ shape):
    """,
    re.VERBOSE | re.MULTILINE,
)


def test_no_sentence_is_without_a_test() -> None:
    for module in sorted(Path(__file__).parent.glob("test_*.py")):
        import_module(f"tests.document.{module.stem}")  # it declares its sentences
    said = {sentence for sentences in SAID.values() for sentence in sentences} | set(NOT_TRIED)
    left = DOCUMENT
    for sentence in sorted(said, key=len, reverse=True):
        left = left.replace(sentence, "")
    lines = [line.strip(" -") for line in _SAYS_NOTHING.sub("", left).splitlines()]
    assert [line for line in lines if line] == []
