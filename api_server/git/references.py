"""Branches, tags and other names of commits."""

import re
from collections.abc import Iterator
from typing import Literal

import attrs
import pygit2
from pygit2.enums import ReferenceFilter

from api_server.git.commits import decode
from api_server.git.errors import AmbiguousNameError
from api_server.git.ref_names import (
    BRANCHES,
    MAX_NAME_BYTES,
    TAGS,
    is_valid_ref_name,
)
from api_server.git.repositories import Repository

_ANY_FULL_SHA = re.compile(r"[0-9a-fA-F]{40}")
_ABBREVIATED_SHA = re.compile(r"[0-9a-f]{7,39}")


@attrs.frozen
class Resolved:
    """The commit that a user's ref names. `name` is the name of the branch or tag, or the commit's full SHA.
    `is_fixed` says that the user gave this full SHA, which never names another commit."""

    kind: Literal["branch", "tag", "commit"]
    name: str
    commit: str
    is_fixed: bool = False


@attrs.frozen
class Branch:
    name: str
    commit: str


#: Maximum number of bytes that are read of a tag's message: lists read the messages of all tags.
_MESSAGE_BYTES = 16 * 1024


@attrs.frozen
class Tag:
    """A tag. `message` is None for a lightweight tag; `target` is the tag object's id for an annotated one."""

    name: str
    commit: str
    target: str
    message: str | None


def default_branch(repository: Repository) -> str:
    """Return the branch that HEAD names. It need not exist, for instance in an empty repository."""
    target = repository.lookup_reference("HEAD").raw_target
    return target.decode(errors="replace").removeprefix(BRANCHES) if isinstance(target, bytes) else ""


def is_empty(repository: Repository) -> bool:
    """Return whether the repository has no branch at all."""
    return not repository.raw_listall_branches()


def branches(repository: Repository) -> list[Branch]:
    """Return all branches by name. This reads no commits, but 50,000 branches take 0.1 s: call it in a thread."""
    return [Branch(name, commit) for name, commit in _pairs(repository, ReferenceFilter.BRANCHES, BRANCHES)]


def branch(repository: Repository, name: str) -> Branch | None:
    target = _target(repository, BRANCHES, name)
    return Branch(name, str(target)) if target is not None else None


def tags(repository: Repository) -> list[Tag]:
    """Return all tags of commits, by name. This reads the object of each annotated tag: call it in a thread."""
    resolved = (
        _tag(repository, name, target) for name, target in _pairs(repository, ReferenceFilter.TAGS, TAGS)
    )
    return [tag for tag in resolved if tag is not None]


def tag_names(repository: Repository) -> list[str]:
    """Return the names of all tags. This reads no objects, and takes as long as `branches`."""
    return [name for name, _ in _pairs(repository, ReferenceFilter.TAGS, TAGS)]


def tag(repository: Repository, name: str) -> Tag | None:
    target = _target(repository, TAGS, name)
    return _tag(repository, name, str(target)) if target is not None else None


def resolve(repository: Repository, revision: str) -> Resolved | None:
    """Return the commit that a revision names, or None: a full name (SHA, HEAD, `refs/heads/...`, `refs/tags/...`) or
    else a branch, a tag or an abbreviated SHA (from 7 digits on), in this order.

    A full name never means anything else, whatever names branches and tags have. If a branch and a tag have the same
    name, git would use the tag, but this returns the branch (decision D11).
    """
    if _ANY_FULL_SHA.fullmatch(revision):
        return _resolve_sha(repository, revision.lower(), is_fixed=True)
    if revision == "HEAD":
        return _resolve_branch(repository, default_branch(repository))
    if revision.startswith(BRANCHES):
        return _resolve_branch(repository, revision.removeprefix(BRANCHES))
    if revision.startswith(TAGS):
        return _resolve_tag(repository, revision.removeprefix(TAGS))
    if revision.startswith("refs/"):
        return None
    if (resolved := _resolve_branch(repository, revision) or _resolve_tag(repository, revision)) is not None:
        return resolved
    return _resolve_sha(repository, revision) if _ABBREVIATED_SHA.fullmatch(revision) else None


def split_range(text: str) -> tuple[str, str, str] | None:
    """Split `A..B` or `A...B` (gitrevisions(7)) into A, the dots and B; an end that is left out is HEAD. Return None
    if the text is no range: no name contains two dots."""
    first, dots, second = text.partition("...") if "..." in text else text.partition("..")
    return (first or "HEAD", dots, second or "HEAD") if dots and text != dots else None


def resolve_history(repository: Repository, revision: str) -> str | None:
    """Return the commits that a revision or a range of two revisions names, in the form of `commits.History.start`, or
    None if one of the revisions does not exist."""
    ends = split_range(revision)
    if ends is None:
        resolved = resolve(repository, revision)
        return None if resolved is None else resolved.commit
    first, dots, second = ends
    old, new = resolve(repository, first), resolve(repository, second)
    return f"{old.commit}{dots}{new.commit}" if old and new else None


def resolve_unambiguous(repository: Repository, name: str) -> Resolved | None:
    """Return the branch or tag that a name stands for, as `resolve` does, or None. Raise `AmbiguousNameError` for a
    short name that both a branch and a tag have."""
    resolved = resolve(repository, name)
    if resolved is None or resolved.kind == "commit":
        return None
    if resolved.kind == "branch" and resolved.name == name and _resolve_tag(repository, name) is not None:
        raise AmbiguousNameError(
            f"{name!r} is both a branch and a tag: say {BRANCHES}{name} or {TAGS}{name}."
        )
    return resolved


def split_ref_and_path(repository: Repository, text: str) -> tuple[Resolved, str] | None:
    """Split `<ref>/<path>` where the longest existing ref ends; the path is "" if nothing follows it. Return None if
    no such ref exists.

    A full SHA and HEAD end at the first slash, whatever refs exist. Each prefix is looked up, which takes 20
    microseconds with any number of refs; the refs are never listed.
    """
    first, _, rest = text.partition("/")
    if first == "HEAD" or _ANY_FULL_SHA.fullmatch(first):
        resolved = resolve(repository, first)
        return None if resolved is None else (resolved, rest)
    end = len(text)
    while end > 0:
        ref = text[:end]
        if len(ref) <= MAX_NAME_BYTES and (resolved := resolve(repository, ref)) is not None:
            return resolved, text[end + 1 :]
        end = text.rfind("/", 0, end)
    return None


def commit_id(repository: Repository, sha: str) -> str | None:
    """Return the full SHA of the commit that `sha`, full or abbreviated, names, or None if it is unknown or
    ambiguous."""
    try:
        peeled = repository[sha].peel(pygit2.Commit)
    except (KeyError, ValueError, pygit2.GitError):
        return None
    return str(peeled.id)


def _resolve_branch(repository: Repository, name: str) -> Resolved | None:
    existing = branch(repository, name)
    return Resolved("branch", name, existing.commit) if existing is not None else None


def _resolve_tag(repository: Repository, name: str) -> Resolved | None:
    existing = tag(repository, name)
    return Resolved("tag", name, existing.commit) if existing is not None else None


def _resolve_sha(repository: Repository, sha: str, *, is_fixed: bool = False) -> Resolved | None:
    full = commit_id(repository, sha)
    return Resolved("commit", full, full, is_fixed) if full is not None else None


def _reference(repository: Repository, namespace: str, name: str) -> pygit2.Reference | None:
    if not is_valid_ref_name(namespace + name):
        return None
    try:
        return repository.lookup_reference(namespace + name)
    except (KeyError, pygit2.GitError, OSError):
        return None


def _target(repository: Repository, namespace: str, name: str) -> pygit2.Oid | None:
    reference = _reference(repository, namespace, name)
    return reference.target if reference is not None and isinstance(reference.target, pygit2.Oid) else None


def _pairs(repository: Repository, kind: ReferenceFilter, namespace: str) -> Iterator[tuple[str, str]]:
    """Return pairs of name and target, sorted. A name that is not UTF-8 fits into no URL and no JSON, so it is left
    out."""
    pairs = []
    for reference in repository.references.iterator(kind):
        try:
            pairs.append((reference.raw_name.decode().removeprefix(namespace), str(reference.target)))
        except UnicodeDecodeError:
            continue
    return iter(sorted(pairs))


def _tag(repository: Repository, name: str, target: str) -> Tag | None:
    commit = commit_id(repository, target)
    if commit is None:
        return None
    git_object = repository[target]
    message = None
    if isinstance(git_object, pygit2.Tag):
        message = decode((git_object.raw_message or b"")[:_MESSAGE_BYTES]).rstrip("\n")
    return Tag(name, commit, target, message)
