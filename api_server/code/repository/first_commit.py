"""The first commit of a project that begins with a README, as part of making the project."""

from aiohttp import web

from api_server.code import refs
from api_server.git import ref_moves
from api_server.git.commits import Person
from api_server.git.new_commits import FileAction, NewCommit, commit_files
from api_server.git.received_push import RefUpdate
from api_server.git.ref_names import BRANCHES, NO_COMMIT
from api_server.git.repositories import REPOSITORIES
from api_server.namespaces.projects import CREATION_LISTENERS, ProjectCreated
from api_server.state.database import Transaction


def setup(app: web.Application) -> None:
    async def listener(transaction: Transaction, created: ProjectCreated) -> None:
        if created.begins_with_readme:
            await _begin(app, transaction, created)

    app[CREATION_LISTENERS].append(listener)


async def _begin(app: web.Application, transaction: Transaction, created: ProjectCreated) -> None:
    """Nothing is written down beforehand, unlike for other moves: until the transaction commits nobody knows of the
    project, and where it does not, the repository goes with it."""
    repositories = app[REPOSITORIES]
    await repositories.create(created.id, created.default_branch)
    who = Person(created.author.name, created.author.email, int(transaction.now.timestamp()))
    readme = FileAction("create", "README.md", _text(created).encode())
    commit = NewCommit("Initial commit", who, who)
    repository = repositories.open(created.id)
    sha = await commit_files(repository, [readme], commit, None)
    await ref_moves.set_first_branch(repository, created.default_branch, sha)
    update = RefUpdate(NO_COMMIT, sha, BRANCHES + created.default_branch)
    await refs.follow(app, transaction, created.id, created.author.id, [update])


def _text(created: ProjectCreated) -> str:
    return "\n\n".join(filter(None, [f"# {created.name}", created.description])) + "\n"
