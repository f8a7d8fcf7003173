"""What a push asks for, in the commands at the head of a receive-pack request, and which of it has happened."""

import re
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import attrs
import pygit2

from api_server.git.errors import RepositoryError
from api_server.git.ref_names import (
    BRANCHES,
    INTERNAL,
    NO_COMMIT,
    is_branch_name,
    is_valid_ref_name,
    short_name,
)
from api_server.git.repositories import open_repository

FLUSH = b"0000"


def packet(line: bytes) -> bytes:
    """Return a line, which may have at most 65,516 bytes, with its length before it."""
    return b"%04x%s" % (len(line) + 4, line)


#: Maximum number of refs that one push may move.
MAX_UPDATES = 5_000
#: Maximum number of bytes of the commands and options before the pack.
MAX_COMMANDS_BYTES = 4 * 2**20
#: Maximum number of updates of a push that have to be fast-forwards: for each, a git of its own walks through the
#: history.
MAX_FAST_FORWARDS = 1000
#: git's configuration that lets `applied_updates` find the push again. Without it, bare repositories keep no reflogs.
REFLOGS = (("core.logAllRefUpdates", "true"),)
_LENGTH_DIGITS = 4
_HEXADECIMAL = re.compile(rb"[0-9a-fA-F]{4}")
_SHA = re.compile(rb"[0-9a-f]{40}")


class MalformedPushError(RepositoryError):
    """The request does not begin as gitprotocol-pack(5) requires ("Reference Update Request")."""


@attrs.frozen
class RefUpdate:
    """A move of `ref` from the commit `old` to the commit `new`. 40 zeros mean that the ref does not exist. `options`
    are those of the push."""

    old: str
    new: str
    ref: str
    options: tuple[str, ...] = attrs.field(default=(), repr=False, eq=False)

    @property
    def kind(self) -> Literal["create", "update", "delete"]:
        if self.new == NO_COMMIT:
            return "delete"
        return "create" if self.old == NO_COMMIT else "update"


@attrs.frozen
class Push:
    """A push that a client proposes. `id` marks its updates in the reflogs; `options` are those of `git push -o`. An
    `atomic` push moves all of its refs or none. If the client accepts a `sideband`, git's answer can contain more than
    its report."""

    updates: tuple[RefUpdate, ...]
    id: str = attrs.field(factory=lambda: uuid.uuid4().hex)
    options: tuple[str, ...] = attrs.field(default=(), repr=False)
    atomic: bool = False
    sideband: bool = False

    @property
    def in_parts(self) -> bool:
        """Whether some of its refs may move although others are refused."""
        return len(self.updates) > 1 and not self.atomic


@attrs.frozen
class Verdict:
    """The service's decision about a push. With `refusal`, a sentence for the user, the whole push is refused.
    Otherwise it is accepted except for the refs in `refused`, each with such a sentence.

    A ref in `fast_forward_only` may be created, but neither deleted nor moved to a commit that does not descend from
    the present one.
    """

    refusal: str | None = None
    refused: Mapping[str, str] = attrs.field(factory=dict)
    fast_forward_only: frozenset[str] = frozenset()


class PushParser:
    """A parser of the commands and push options in a request body that arrives in pieces.

    Call `feed` until it returns True. `received` then has all bytes so far, which git needs as well. A probe (a lone
    flush packet) and an empty push have no updates. Certificates and unknown lines are refused, so that git gets no
    command that has not been parsed here.
    """

    def __init__(self, max_updates: int = MAX_UPDATES) -> None:
        self.received = bytearray()
        self._max_updates = max_updates
        self.updates: list[RefUpdate] = []
        self.options: list[str] = []
        self._position = 0
        self._section: Literal["commands", "options", "done"] = "commands"
        self._capabilities: set[bytes] = set()

    def feed(self, data: bytes) -> bool:
        """Parse the next piece, and return whether the head is complete. Raise `MalformedPushError`."""
        self.received += data
        while self._section != "done" and self._take_packet():
            if self._position > MAX_COMMANDS_BYTES or len(self.updates) > self._max_updates:
                raise MalformedPushError("The push updates too many refs at once; push fewer.")
        return self._section == "done"

    def push(self) -> Push:
        return Push(
            tuple(self.updates),
            options=tuple(self.options),
            atomic=b"atomic" in self._capabilities,
            sideband=not self._capabilities.isdisjoint((b"side-band", b"side-band-64k")),
        )

    def _take_packet(self) -> bool:
        start = self._position
        digits = bytes(self.received[start : start + _LENGTH_DIGITS])
        if len(digits) < _LENGTH_DIGITS:
            return False
        if not _HEXADECIMAL.fullmatch(digits):
            raise MalformedPushError("A packet has no length.")
        length = int(digits, 16)
        if length == 0:
            self._position += _LENGTH_DIGITS
            self._end_section()
            return True
        if length <= _LENGTH_DIGITS:
            raise MalformedPushError("A packet has an impossible length.")
        if len(self.received) < start + length:
            return False
        self._position += length
        self._take_line(bytes(self.received[start + _LENGTH_DIGITS : start + length]).removesuffix(b"\n"))
        return True

    def _end_section(self) -> None:
        more = self._section == "commands" and b"push-options" in self._capabilities and self.updates
        self._section = "options" if more else "done"

    def _take_line(self, line: bytes) -> None:
        if self._section == "options":
            self.options.append(line.decode(errors="replace"))
            return
        command, _, capabilities = line.partition(b"\0")
        self._capabilities.update(capabilities.split())
        parts = command.split(b" ", 2)
        if len(parts) == 2 and parts[0] == b"shallow" and _SHA.fullmatch(parts[1]):
            return
        if len(parts) != 3 or not _SHA.fullmatch(parts[0]) or not _SHA.fullmatch(parts[1]) or not parts[2]:
            raise MalformedPushError("A line is no ref update.")
        ref = parts[2].decode(errors="surrogateescape")
        self.updates.append(RefUpdate(parts[0].decode(), parts[1].decode(), ref))


def refused_names(push: Push) -> dict[str, str]:
    """Return the reason for each ref of a push that nobody may push because of its name."""
    refused = {}
    for update in push.updates:
        name = short_name(update.ref)
        if not is_valid_ref_name(update.ref):  # including names that are not UTF-8
            refused[update.ref] = f"{update.ref!a} is not a valid name for a branch or tag."
        elif update.ref.startswith(INTERNAL):
            refused[update.ref] = f"{update.ref} is kept by the server and cannot be pushed."
        elif update.kind == "create" and name is not None and not is_branch_name(name):
            refused[update.ref] = f"{name!r} is not a valid name for a branch or tag; choose another."
    return refused


def refused_refs(push: Push, verdict: Verdict) -> dict[str, str]:
    """Return the reason for each ref of a push that must not move, as far as this is known without its objects."""
    deleted = {
        update.ref: f"You are not allowed to delete the protected {update.ref}."
        for update in push.updates
        if update.kind == "delete" and update.ref in verdict.fast_forward_only
    }
    return {**deleted, **verdict.refused}


def refusal_of(push: Push, verdict: Verdict, refused: Mapping[str, str]) -> str | None:
    """Return why the whole push is refused if these of its refs are `refused`, or None if some of it may happen."""
    if verdict.refusal is not None:
        return verdict.refusal
    if refused and (push.atomic or all(update.ref in refused for update in push.updates)):
        return next(iter(refused.values()))
    if len(fast_forwards(push, verdict)) > MAX_FAST_FORWARDS:
        return "The push moves too many protected refs at once; push fewer."
    return None


def fast_forwards(push: Push, verdict: Verdict) -> list[RefUpdate]:
    """Return the updates that the verdict allows only as fast-forwards."""
    return [u for u in push.updates if u.kind == "update" and u.ref in verdict.fast_forward_only]


def reflog_identity(push: Push) -> dict[str, str]:
    """Return the environment variables that make git record the push in the reflog of each branch that it moves."""
    return {"GIT_COMMITTER_NAME": "push", "GIT_COMMITTER_EMAIL": push.id}


def applied_updates(repository: Path, push: Push) -> list[RefUpdate]:
    """Return the updates of a push that have really happened. `push` may have been stored: this also works after a
    crash.

    A branch's reflog names the push that moved it, so a later push does not hide an earlier one. Deletions, tags and
    other refs have no reflog: they count if the ref is where the push wanted it. Blocks: call it in a thread.
    """
    opened = open_repository(repository)
    return [
        attrs.evolve(update, options=push.options)
        for update in push.updates
        if _happened(opened, update, push.id)
    ]


def _happened(repository: pygit2.Repository, update: RefUpdate, push_id: str) -> bool:
    try:
        reference = repository.lookup_reference(update.ref)
    except KeyError:
        return update.kind == "delete"
    except (pygit2.GitError, ValueError):
        return False  # git does not accept the name
    if update.kind == "delete":
        return False
    if not update.ref.startswith(BRANCHES):
        return str(reference.target) == update.new
    return any(
        str(entry.oid_new) == update.new and entry.committer.email == push_id for entry in reference.log()
    )
