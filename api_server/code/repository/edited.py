"""Whether files are still as those know them who want to change them (`last_commit_id`)."""

from collections.abc import Callable, Sequence

from aiohttp import web

from api_server.code.reading import reading
from api_server.git.commits import History, history
from api_server.git.new_commits import FileAction
from api_server.git.repositories import Repository
from api_server.web.errors import invalid


class EditedMeanwhile(Exception):
    """Another commit has changed the file."""


async def check_known(
    request: web.Request,
    repository: Repository,
    parent: str | None,
    actions: Sequence[FileAction],
    words: Callable[[Exception], str],
) -> None:
    """Raises 400, in these `words`, where the newest commit up to `parent` that changed a file is not the one that its
    action names; 503 where that takes too long to find."""
    told = [action for action in actions if action.last_commit_id and action.action != "create"]
    if not told:
        return
    async with reading(request):
        for action in told:
            path = action.previous_path or action.path
            known = History(start=parent, path=path)
            newest = await history(repository, known, skip=0, limit=1) if parent else []
            if newest != [action.last_commit_id]:
                problem = EditedMeanwhile(f"The file has changed since you started editing it: {path}")
                raise invalid(words(problem))
