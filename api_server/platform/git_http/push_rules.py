"""What a push may move: decided from the names of its refs before git starts."""

from collections.abc import Sequence

from api_server.git.names import BRANCHES
from api_server.git.push import RefUpdate, Verdict
from api_server.platform.projects.access import Project
from api_server.state.database import Executor, Row
from api_server.web.access import Role

PROTECTIONS_OF = """
    SELECT wanted.name,
        -- Of several rules that match, the most permissive counts; level 0 stands for nobody.
        coalesce(min(nullif(rules.push_access_level, 0)), 100) AS push_access_level,
        bool_or(rules.allow_force_push) AS allow_force_push
    FROM unnest(%(names)s::text[]) AS wanted (name)
    JOIN protected_branches rules
        ON rules.project_id = %(project_id)s AND wildcard_matches(rules.name, wanted.name)
    GROUP BY wanted.name
"""


async def protections_of(database: Executor, project_id: int, names: Sequence[str]) -> dict[str, Row]:
    """The protection (push_access_level, allow_force_push) of each of these branches that is protected."""
    rows = await database.rows(PROTECTIONS_OF, project_id=project_id, names=list(names))
    return {row.name: row for row in rows}


async def verdict(database: Executor, project: Project, updates: Sequence[RefUpdate]) -> Verdict:
    """Refuses the whole push where one of its updates is not the caller's to make."""
    branches = [u.ref.removeprefix(BRANCHES) for u in updates if u.ref.startswith(BRANCHES)]
    protected = await protections_of(database, project.id, branches)
    for update in updates:
        protection = (
            protected.get(update.ref.removeprefix(BRANCHES)) if update.ref.startswith(BRANCHES) else None
        )
        if protection is None:
            continue
        if update.kind == "delete":
            return Verdict("You cannot delete a protected branch by a push; use the API.")
        if project.role < protection.push_access_level:
            return Verdict("You are not allowed to push code to protected branches on this project.")
    rigid = {BRANCHES + name for name, protection in protected.items() if not protection.allow_force_push}
    return Verdict(fast_forward_only=frozenset(rigid))


def refusal(project: Project) -> str | None:
    """Why the caller may not push to this project at all, or None."""
    if project.archived:
        return "The repository is archived: nothing can be pushed to it."
    if project.role < Role.DEVELOPER:
        return "You are not allowed to push code to this project."
    return None
