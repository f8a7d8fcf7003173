"""Protection of branches and tags: the combined rules of a project that match a name."""

import functools
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, TypeVar

import attrs

from api_server.code import protected_ref_queries
from api_server.code.protected_ref_queries import BranchRules
from api_server.namespaces.resources import Project
from api_server.services import Services
from api_server.state.database import Executor
from api_server.state.preconditions import Precondition
from api_server.web.routes import Role

#: The protection of a branch or of a tag.
ProtectionT = TypeVar("ProtectionT")

#: Levels of rules that are not roles.
NOBODY: Final = 0
ADMINISTRATORS = 60


@attrs.frozen(kw_only=True)
class Protection:
    """The combination of all rules that match a branch. Of several rules, the most permissive one counts."""

    protected: bool
    push_levels: frozenset[int]
    merge_levels: frozenset[int]
    allow_force_push: bool

    def may_push(self, role: int, *, admin: bool = False) -> bool:
        """Return whether a caller with `role` in the project may push; levels of administrators need an `admin`."""
        return reaches(self.push_levels, role, admin=admin)

    def may_merge(self, role: int, *, admin: bool = False) -> bool:
        """Return whether a caller with `role` in the project may merge into the branch."""
        return reaches(self.merge_levels, role, admin=admin)

    def may_update(self, role: int, *, admin: bool = False) -> bool:
        """Return whether a caller with `role` in the project may add commits, by merging or by pushing."""
        return self.may_merge(role, admin=admin) or self.may_push(role, admin=admin)


_DEVELOPERS = frozenset({int(Role.DEVELOPER)})
#: The protection of a branch that no rule matches.
UNPROTECTED = Protection(
    protected=False, push_levels=_DEVELOPERS, merge_levels=_DEVELOPERS, allow_force_push=True
)


def reaches(levels: Iterable[int], role: int, *, admin: bool) -> bool:
    """Return whether a caller with `role` in the project reaches one of the levels that rules name."""
    return any(level != NOBODY and (admin or (level != ADMINISTRATORS and role >= level)) for level in levels)


async def protections_of(database: Executor, project_id: int, names: Sequence[str]) -> dict[str, Protection]:
    """Return the protection of each of these branches, which is `UNPROTECTED` if no rule matches."""
    rows = await protected_ref_queries.branch_rules(database, project_id, names)
    return dict.fromkeys(names, UNPROTECTED) | {rules.name: _from(rules) for rules in rows}


async def protection_of(database: Executor, project_id: int, name: str) -> Protection:
    """Return the protection of one branch, like `protections_of`."""
    return (await protections_of(database, project_id, [name]))[name]


def refusal_of_tag(project: Project, name: str) -> str | None:
    """Return why nobody may create a tag of this name, or None. A tag must not be called like the default branch: it
    would hide that branch, which may be protected."""
    if name != project.default_branch:
        return None
    return "You cannot use default branch name to create a tag"


async def protection_for(services: Services, project_id: int, name: str) -> Protection:
    """Return the branch's protection for a decision about the request. The request can write only while it still
    applies."""
    find = functools.partial(protection_of, project_id=project_id, name=name)
    return await _relied_on(services, project_id, find)


def _from(rules: BranchRules) -> Protection:
    return Protection(
        protected=True,
        push_levels=frozenset(rules.push_levels),
        merge_levels=frozenset(rules.merge_levels),
        allow_force_push=rules.allow_force_push,
    )


#: Why a caller may not create a tag, in GitLab's words.
NOT_TO_CREATE = "You are not allowed to create this tag as it is protected."


@attrs.frozen(kw_only=True)
class TagProtection:
    """The combination of all rules that match a tag. Of several rules, the most permissive one counts. A protected tag
    cannot be moved; Maintainers may delete it through the API."""

    protected: bool
    create_levels: frozenset[int]

    def may_create(self, role: int, *, admin: bool = False) -> bool:
        """Return whether a caller with `role` in the project may create the tag, and run pipelines on it."""
        return reaches(self.create_levels, role, admin=admin)

    def may_delete(self, role: int) -> bool:
        """Return whether a caller with `role` in the project may delete the tag through the API."""
        return role >= (Role.MAINTAINER if self.protected else Role.DEVELOPER)


#: The protection of a tag that no rule matches.
UNPROTECTED_TAG = TagProtection(protected=False, create_levels=frozenset({int(Role.DEVELOPER)}))


async def tag_protections_of(
    database: Executor, project_id: int, names: Sequence[str]
) -> dict[str, TagProtection]:
    """Return the protection of each of these tags, which is `UNPROTECTED_TAG` if no rule matches."""
    rows = await protected_ref_queries.tag_rules(database, project_id, names)
    protected = {
        rules.name: TagProtection(protected=True, create_levels=frozenset(rules.create_levels))
        for rules in rows
    }
    return dict.fromkeys(names, UNPROTECTED_TAG) | protected


async def tag_protection_of(database: Executor, project_id: int, name: str) -> TagProtection:
    """Return the protection of one tag, like `tag_protections_of`."""
    return (await tag_protections_of(database, project_id, [name]))[name]


async def tag_protection_for(services: Services, project_id: int, name: str) -> TagProtection:
    """Return the tag's protection for a decision about the request, like `protection_for`."""
    find = functools.partial(tag_protection_of, project_id=project_id, name=name)
    return await _relied_on(services, project_id, find)


async def _relied_on(
    services: Services, project_id: int, find: Callable[[Executor], Awaitable[ProtectionT]]
) -> ProtectionT:
    """Return the protection that `find` reads, and make it a precondition of the request."""
    protection = await find(services.database)
    services.require_unchanged(Precondition((f"project:{project_id}",), protection, find))
    return protection
