"""What happens to projects that others react to, in the change's transaction."""

from collections.abc import Awaitable, Callable

import attrs
from aiohttp import web

from api_server.state.audit_trail import Author
from api_server.state.database import Transaction


@attrs.frozen(kw_only=True)
class ProjectCreated:
    """`author` has made it; where it `begins_with_readme`, its default branch is to have a first commit."""

    id: int
    name: str
    description: str | None
    default_branch: str
    begins_with_readme: bool
    author: Author


#: `listener(transaction, created)`. What it puts on disk is removed again where the project is not made after all.
CREATION_LISTENERS: web.AppKey[list[Callable[[Transaction, ProjectCreated], Awaitable[None]]]] = web.AppKey(
    "creation_listeners", list
)

#: `listener(transaction, project_id)`, when git's HEAD is what the project's default branch has become.
DEFAULT_BRANCH_LISTENERS: web.AppKey[list[Callable[[Transaction, int], Awaitable[None]]]] = web.AppKey(
    "default_branch_listeners", list
)
