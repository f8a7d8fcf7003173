"""What protects a branch: the rules of its project that match its name, together."""

from collections.abc import Iterable, Sequence

import attrs

from api_server.state.database import Executor, Row
from api_server.state.statements import Statement
from api_server.web.access import Role

#: Levels that a rule can name beside roles.
NOBODY = 0
ADMINISTRATORS = 60


@attrs.frozen(kw_only=True)
class Protection:
    """What the rules that match a branch allow together: of several, the most permissive counts."""

    protected: bool
    push_levels: frozenset[int]
    merge_levels: frozenset[int]
    allow_force_push: bool

    def may_push(self, role: int, *, admin: bool = False) -> bool:
        """Whether a caller with `role` in the project may push; levels of administrators need an `admin`."""
        return _reaches(self.push_levels, role, admin=admin)

    def may_merge(self, role: int, *, admin: bool = False) -> bool:
        """Whether a caller with `role` in the project may merge into the branch."""
        return _reaches(self.merge_levels, role, admin=admin)


_DEVELOPERS = frozenset({int(Role.DEVELOPER)})
#: What holds for a branch that no rule matches.
UNPROTECTED = Protection(
    protected=False, push_levels=_DEVELOPERS, merge_levels=_DEVELOPERS, allow_force_push=True
)


def _reaches(levels: Iterable[int], role: int, *, admin: bool) -> bool:
    return any(level != NOBODY and (admin or (level != ADMINISTRATORS and role >= level)) for level in levels)


PROTECTIONS_OF = Statement("""
    SELECT wanted.name,
        array_agg(DISTINCT rules.push_access_level::int) AS push_levels,
        array_agg(DISTINCT rules.merge_access_level::int) AS merge_levels,
        bool_or(rules.allow_force_push) AS allow_force_push
    FROM unnest(%(names)s::text[]) AS wanted (name)
    JOIN protected_branches rules
        ON rules.project_id = %(project_id)s AND wildcard_matches(rules.name, wanted.name)
    GROUP BY wanted.name
""")


async def protections_of(database: Executor, project_id: int, names: Sequence[str]) -> dict[str, Protection]:
    """The protection of each of these branches; UNPROTECTED where no rule matches."""
    rows = await database.rows(PROTECTIONS_OF, project_id=project_id, names=list(names))
    return dict.fromkeys(names, UNPROTECTED) | {row.name: _from(row) for row in rows}


async def protection_of(database: Executor, project_id: int, name: str) -> Protection:
    """As `protections_of`, of one branch."""
    return (await protections_of(database, project_id, [name]))[name]


def _from(row: Row) -> Protection:
    return Protection(
        protected=True,
        push_levels=frozenset(row.push_levels),
        merge_levels=frozenset(row.merge_levels),
        allow_force_push=row.allow_force_push,
    )
