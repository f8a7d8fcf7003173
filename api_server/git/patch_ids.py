"""What two differences have in common whose lines and spaces stand elsewhere: git's patch id."""

from pathlib import Path

from api_server.git.commits import EMPTY_TREE, tree_of
from api_server.git.processes import TIME_LIMIT_SECONDS, start
from api_server.git.repositories import Repository


async def patch_id(repository: Repository, old: str | None, new: str) -> str | None:
    """That of what differs between two commits; of all of `new` without `old`. None where nothing differs. Raises
    `NotFoundError` for what is no commit, and `GitError`."""
    trees = (
        EMPTY_TREE if old is None else str(tree_of(repository, old).id),
        str(tree_of(repository, new).id),
    )
    # With whole ids, since those of binary files are what is left of their difference.
    arguments = ["diff-tree", "-p", "--full-index", "--no-renames", "--no-ext-diff", "--no-textconv", *trees]
    place, limit = Path(repository.path), TIME_LIMIT_SECONDS
    async with (
        start(arguments, repository=place, time_limit=limit) as difference,
        start(["patch-id", "--stable"], repository=place, with_stdin=True, time_limit=limit) as child,
    ):
        child.feed(difference.checked_output())
        told = await child.whole_output()
        await child.check()
    return told.split()[0].decode() if told else None
