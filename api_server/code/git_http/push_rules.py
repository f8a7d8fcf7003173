"""What a push may move: decided from the names of its refs before git starts."""

from collections.abc import Sequence

from api_server.code.branches.protection import Protection, protections_of, refusal_of_tag
from api_server.code.tags.protection import NOT_TO_CREATE, TagProtection, tag_protections_of
from api_server.git.received_push import RefUpdate, Verdict
from api_server.git.ref_names import BRANCHES, TAGS
from api_server.namespaces.resources import Project
from api_server.state.database import Executor
from api_server.web.routes import Role


async def verdict(database: Executor, project: Project, updates: Sequence[RefUpdate]) -> Verdict:
    """Refuses each update that is not the caller's to make."""
    moved = {update.ref: update.kind for update in updates}
    branches = [ref.removeprefix(BRANCHES) for ref in moved if ref.startswith(BRANCHES)]
    tags = [ref.removeprefix(TAGS) for ref in moved if ref.startswith(TAGS)]
    protections = await protections_of(database, project.id, branches)
    tag_protections = await tag_protections_of(database, project.id, tags)
    problems = {
        BRANCHES + name: _problem_with_branch(project, moved[BRANCHES + name], protections[name])
        for name in branches
    } | {
        TAGS + name: _problem_with_tag(project, name, moved[TAGS + name], tag_protections[name])
        for name in tags
    }
    return Verdict(
        refused={ref: problem for ref, problem in problems.items() if problem},
        fast_forward_only=frozenset(
            BRANCHES + name for name in branches if not protections[name].allow_force_push
        ),
    )


def _problem_with_branch(project: Project, kind: str, protection: Protection) -> str | None:
    """Why the caller may not move a branch, or None."""
    if protection.protected and kind == "delete":
        return "You cannot delete a protected branch by a push; use the API."
    if protection.protected and not protection.may_push(project.role, admin=project.admin):
        return "You are not allowed to push code to protected branches on this project."
    return None


def _problem_with_tag(project: Project, tag: str, kind: str, protection: TagProtection) -> str | None:
    """Why the caller may not move that tag, or None."""
    if kind == "create" and (problem := refusal_of_tag(project, tag)):
        return f"{problem}."
    if not protection.protected:
        return None
    if kind == "update":
        return "Protected tags cannot be updated."
    if kind == "delete":
        return "You cannot delete a protected tag by a push; use the API."
    may_create = protection.may_create(project.role, admin=project.admin)
    return None if may_create else NOT_TO_CREATE


def refusal(project: Project) -> str | None:
    """Why the caller may not push to this project at all, or None."""
    if project.archived:
        return "The repository is archived: nothing can be pushed to it."
    if project.role < Role.DEVELOPER:
        return "You are not allowed to push code to this project."
    return None
