"""Our own side of a mirror run: the repository's refs and how its commits descend from each other."""

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import attrs

from api_server.git.processes import run
from api_server.git.remote.connection import Refs

#: The last field is a blank for most refs, an asterisk for the default branch, and longer for symbolic refs.
_FORMAT = "%(objectname) %(refname) %(HEAD)%(symref)"


@attrs.frozen
class Source:
    """Branches and tags, and the default branch's full name if it has a commit."""

    refs: Refs
    default_branch: str | None


async def read_source(repository: Path) -> Source:
    """All branches and tags of a bare repository, with one `git for-each-ref`; none where there is no repository."""
    if not (repository / "HEAD").is_file():
        return Source(Refs({}), None)
    command = ["for-each-ref", f"--format={_FORMAT}", "refs/heads/", "refs/tags/"]
    output = (await run(command, repository=repository)).stdout.decode(errors="surrogateescape")
    fields = [line.split(" ", 2) for line in output.split("\n")[:-1]]
    marks = {name: mark for _, name, mark in fields if mark != " "}
    return Source(
        Refs(
            {name: sha for sha, name, _ in fields},
            symbolic=frozenset(name for name, mark in marks.items() if len(mark) > 1),
        ),
        next((name for name, mark in marks.items() if mark.startswith("*")), None),
    )


async def descents_that_hold(repository: Path, questions: Iterable[tuple[str, str]]) -> set[tuple[str, str]]:
    """Those of the pairs (old, new) where `new` is `old` or descends from it.

    Both may be tags of commits. A pair does not hold when the repository lacks the old commit.
    """
    asked = set(questions)
    if not asked:
        return set()
    commits = await _commits(repository, sorted({sha for pair in asked for sha in pair}))
    answerable = {pair for pair in asked if pair[0] in commits and pair[1] in commits}
    ancestors_of: dict[str, set[str]] = defaultdict(set)
    for old, new in answerable:
        ancestors_of[commits[new]].add(commits[old])
    for new, olds in ancestors_of.items():
        ancestors_of[new] = olds - await _not_contained(repository, olds, new)
    return {(old, new) for old, new in answerable if commits[old] in ancestors_of[commits[new]]}


async def _commits(repository: Path, shas: Iterable[str]) -> dict[str, str]:
    """The commit that each object is or peels to, without those that are missing or no commits."""
    names = list(shas)
    questions = "".join(f"{name}^{{commit}}\n" for name in names)
    output = await run(["cat-file", "--batch-check"], repository=repository, stdin=questions.encode())
    answers = (line.split() for line in output.stdout.decode().splitlines())
    return {name: answer[0] for name, answer in zip(names, answers, strict=True) if answer[1] == "commit"}


async def _not_contained(repository: Path, olds: Iterable[str], new: str) -> set[str]:
    """Commits that are reachable from `olds` but not from `new`, in one walk for any number of them."""
    revisions = "".join(f"{old}\n" for old in olds) + f"^{new}\n"
    output = await run(["rev-list", "--stdin"], repository=repository, stdin=revisions.encode())
    return set(output.stdout.decode().split())
