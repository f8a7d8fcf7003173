"""A place in the repository as an address names it: `<ref>/<path>`, of which only the refs tell where one ends."""

import attrs
from aiohttp import web

from api_server.code.repository.access import opened
from api_server.git import references
from api_server.git.repositories import Repository
from api_server.namespaces.resources import Project
from api_server.web.errors import not_found

#: Folders above a place that a page shows: each has a link with its whole path.
MOST_SHOWN = 50


@attrs.frozen
class Place:
    """`commit` is the full SHA that `ref` names; `path` is "" for the root folder."""

    repository: Repository = attrs.field(repr=False)
    ref: str
    commit: str
    path: str

    @property
    def trail(self) -> list[tuple[str, str]]:
        """Names and paths of the folders above, then of the place itself; of the nearest where there are many."""
        parts = self.path.split("/") if self.path else []
        numbers = range(max(0, len(parts) - MOST_SHOWN), len(parts))
        return [(parts[number], "/".join(parts[: number + 1])) for number in numbers]


async def place(request: web.Request, found: Project, rest: str) -> Place | None:
    """What `rest` names; None in a repository that has no commit on its default branch, of that branch. Raises 404."""
    repository, rest = await opened(request, found), rest.strip("/")
    split = references.split_ref_and_path(repository, rest)
    if split is None:
        if rest == found.default_branch:
            return None
        raise not_found("Tree")
    resolved, path = split
    # As it was written: `HEAD` and short SHAs stay, names that are full are made short.
    return Place(repository, resolved.name, resolved.commit, path)
