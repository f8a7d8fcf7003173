"""The default branch, of which there is one: git's HEAD follows the project's row (decision D11)."""

from contextlib import suppress

from aiohttp import web

from api_server.git import ref_moves, references
from api_server.git.errors import NotFoundError, RepositoryMissingError
from api_server.git.ref_names import is_branch_name
from api_server.git.repositories import REPOSITORIES, Repositories
from api_server.namespaces.projects import queries
from api_server.namespaces.projects.events import DEFAULT_BRANCH_LISTENERS
from api_server.outbound import edges
from api_server.state.database import Transaction
from api_server.state.errors import NotFound
from api_server.state.queue import QUEUE, enqueue
from api_server.web.context import DATABASE, App
from api_server.web.errors import invalid

FOLLOW = "follow_default_branch"


def setup(app: web.Application) -> None:
    async def follow_default_branch(project_id: int) -> None:
        with suppress(NotFound):
            await follow(app, project_id)

    app[QUEUE].add(FOLLOW, follow_default_branch, attempts=15)


async def change(transaction: Transaction, repositories: Repositories, project_id: int, name: str) -> None:
    """Queues what follows when the project's row, which is locked, gets `name`. Raises 400 where there is no such
    branch."""
    repository = repositories.open(project_id) if repositories.exists(project_id) else None
    # one of old that is named like something else would be read as that
    if repository is None or not is_branch_name(name) or references.branch(repository, name) is None:
        raise invalid({"base": [f"Could not change HEAD: branch '{name}' does not exist"]})
    await enqueue(transaction, FOLLOW, project_id=project_id)


async def follow(app: App, project_id: int) -> None:
    """Moves git's HEAD to where the row says; then edges and listeners are told. Raises NotFound.

    Done before the change is answered, and by the queue for one whose process has died.
    """
    async with app[DATABASE].transaction() as transaction:
        project = await queries.lock_project(transaction, project_id)
        with suppress(NotFoundError, RepositoryMissingError):  # the branch has been deleted since
            await ref_moves.set_default_branch(app[REPOSITORIES].open(project_id), project.default_branch)
        await edges.changed(transaction, edges.project_key(project_id))
        for listener in app[DEFAULT_BRANCH_LISTENERS]:
            await listener(transaction, project_id)
