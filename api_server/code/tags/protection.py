"""What protects a tag: the rules of its project that match its name, together."""

import functools
from collections.abc import Sequence

import attrs
from aiohttp import web

from api_server.code.branches.protection import reaches
from api_server.code.tags import queries
from api_server.state.database import Executor
from api_server.web import context, grounds
from api_server.web.grounds import Ground
from api_server.web.routes import Role

#: Why a caller may not make a tag, in GitLab's words.
NOT_TO_CREATE = "You are not allowed to create this tag as it is protected."


@attrs.frozen(kw_only=True)
class TagProtection:
    """What the rules that match a tag allow together: of several, the most permissive counts. A protected tag stays
    where it is; Maintainers may remove it through the API."""

    protected: bool
    create_levels: frozenset[int]

    def may_create(self, role: int, *, admin: bool = False) -> bool:
        """Whether a caller with `role` in the project may make the tag, and run pipelines on it."""
        return reaches(self.create_levels, role, admin=admin)

    def may_delete(self, role: int) -> bool:
        """Likewise, remove it through the API."""
        return role >= (Role.MAINTAINER if self.protected else Role.DEVELOPER)


#: What holds for a tag that no rule matches.
UNPROTECTED_TAG = TagProtection(protected=False, create_levels=frozenset({int(Role.DEVELOPER)}))


async def tag_protections_of(
    database: Executor, project_id: int, names: Sequence[str]
) -> dict[str, TagProtection]:
    """The protection of each of these tags; UNPROTECTED_TAG where no rule matches."""
    found = await queries.rules_for(database, project_id, names)
    protected = {
        rules.name: TagProtection(protected=True, create_levels=frozenset(rules.create_levels))
        for rules in found
    }
    return dict.fromkeys(names, UNPROTECTED_TAG) | protected


async def tag_protection_of(database: Executor, project_id: int, name: str) -> TagProtection:
    """As `tag_protections_of`, of one tag."""
    return (await tag_protections_of(database, project_id, [name]))[name]


async def tag_protection_for(request: web.Request, project_id: int, name: str) -> TagProtection:
    """As `tag_protection_of`, for a decision about the request: what it writes is written while that is so."""
    found = await tag_protection_of(context.database(request), project_id, name)
    read = functools.partial(tag_protection_of, project_id=project_id, name=name)
    grounds.rely_on(request, Ground((f"project:{project_id}",), found, read))
    return found
