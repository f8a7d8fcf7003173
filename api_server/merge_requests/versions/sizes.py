"""What git tells of versions: how many files each changes, and its patch id."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from aiohttp import web
from cachetools import LRUCache

from api_server.code.reading import reading
from api_server.code.repository.comparing import number_of_differences
from api_server.git.diffs import patch_id
from api_server.git.errors import NotFoundError
from api_server.git.repositories import repositories
from api_server.web.errors import ApiError
from common.concurrency import TooBusy

#: For so long a list waits for git.
_SECONDS = 3
#: By the commits that a version is between, whose difference stays what it is.
SIZES: web.AppKey[LRUCache[tuple[str | None, str], dict[str, str | None]]] = web.AppKey(
    "version_sizes", LRUCache
)


def setup(app: web.Application) -> None:
    app[SIZES] = LRUCache(maxsize=10_000)


async def add_sizes(request: web.Request, project_id: int, versions: Sequence[dict[str, Any]]) -> None:
    """Completes these entities; those for which there is no time have null there."""
    known = request.config_dict[SIZES]
    places = {(version["base_commit_sha"], version["head_commit_sha"]) for version in versions}
    if missing := places - known.keys():
        repository = repositories(request).open(project_id)
        with suppress(ApiError, TooBusy, TimeoutError):
            async with asyncio.timeout(_SECONDS), reading(request):
                for base, head in missing:
                    with suppress(NotFoundError):  # of before the repository was replaced
                        number = await number_of_differences(request, repository, base, head)
                        known[base, head] = {
                            "real_size": number,
                            "patch_id_sha": await patch_id(repository, base, head),
                        }
    for version in versions:
        version.update(known.get((version["base_commit_sha"], version["head_commit_sha"]), {}))
