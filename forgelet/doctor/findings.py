"""What a check has found: one line each."""

from collections.abc import Iterable
from typing import Any, Literal

import attrs

from common.logs import redact

State = Literal["ok", "warning", "failed"]
#: The worst last.
STATES: tuple[State, ...] = ("ok", "warning", "failed")


def _one_line(text: str) -> str:
    return redact(" ".join(text.split())).rstrip(".")


@attrs.frozen
class Finding:
    """`what` is so, and where that is not well, `remedy` says what to do. Neither holds a secret: URLs lose theirs."""

    state: State
    what: str = attrs.field(converter=_one_line)
    remedy: str = attrs.field(default="", converter=_one_line)

    @property
    def text(self) -> str:
        """One line for people."""
        return f"{self.what} — {self.remedy}" if self.remedy else self.what

    def as_json(self) -> dict[str, Any]:
        """`{"state", "what", "remedy"}`; nothing to do is null."""
        return {"state": self.state, "what": self.what, "remedy": self.remedy or None}


def ok(what: str) -> Finding:
    """All is well."""
    return Finding("ok", what)


def warning(what: str, remedy: str) -> Finding:
    """The service works, but not as it should, or not for long."""
    return Finding("warning", what, remedy)


def failed(what: str, remedy: str) -> Finding:
    """Something does not work."""
    return Finding("failed", what, remedy)


def of_mistake(
    sentence: str, otherwise: str = "put that right, the process does not start with it"
) -> Finding:
    """What a process would say instead of starting: its sentences end with the remedy, after the last colon, or else
    that is `otherwise`."""
    what, colon, remedy = sentence.rpartition(": ")
    if colon and remedy.startswith(_REMEDIES):
        return failed(what, remedy)
    return failed(sentence, otherwise)


#: How the remedies begin in the sentences of `Mistake`s.
_REMEDIES = ("install", "upgrade", "restore", "run", "give", "set", "or")


def worst(findings: Iterable[Finding]) -> State:
    """The worst state of all."""
    return max((finding.state for finding in findings), key=STATES.index, default="ok")
