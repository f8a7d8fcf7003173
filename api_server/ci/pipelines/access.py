"""Who may see and change the pipelines and jobs of a project (decision D1), and give variables to what runs."""

import datetime
from collections.abc import Iterable, Sequence

from aiohttp import web

from api_server.ci.config.errors import ConfigError
from api_server.ci.config.variables import Variable
from api_server.ci.pipelines import queries, repository
from api_server.ci.pipelines.creation_queries import Subject
from api_server.ci.pipelines.queries import Pipeline
from api_server.ci.variables import rules
from api_server.code.branches.protection import protection_for, protection_of
from api_server.code.tags.protection import tag_protection_for, tag_protection_of
from api_server.git.errors import AmbiguousNameError
from api_server.git.repositories import repositories
from api_server.namespaces.resources import Project
from api_server.state.database import Executor
from api_server.web import context
from api_server.web.access import Role
from api_server.web.errors import bad_request, forbidden, invalid
from api_server.web.routes import caller


async def find_pipeline(request: web.Request, project: Project, pipeline_id: int) -> Pipeline:
    """Raises 404 for one that is not the project's."""
    return await queries.find_pipeline(context.database(request), project.id, pipeline_id)


async def may_run_on(
    database: Executor, project_id: int, ref: str, *, tag: bool, role: int, admin: bool
) -> bool:
    """Whether somebody with that role in the project may run something on a branch (where it is protected, only who
    may push) or on a tag (likewise, who may make it). `ref` is a short name."""
    if tag:
        return (await tag_protection_of(database, project_id, ref)).may_create(role, admin=admin)
    return (await protection_of(database, project_id, ref)).may_push(role, admin=admin)


async def may_change(request: web.Request, project: Project, ref: str, *, tag: bool) -> bool:
    """Whether the caller may run, cancel and erase on this ref: as `may_run_on`, and never in archived projects."""
    if project.archived:
        return False
    if tag:
        made = await tag_protection_for(request, project.id, ref)
        return made.may_create(project.role, admin=project.admin)
    protection = await protection_for(request, project.id, ref)
    return protection.may_push(project.role, admin=project.admin)


async def check_may_change(request: web.Request, project: Project, ref: str, *, tag: bool) -> None:
    """Raises 403 unless `may_change`."""
    if not await may_change(request, project, ref, tag=tag):
        raise forbidden()


async def check_may_read_variables(request: web.Request, project: Project, pipeline: Pipeline) -> None:
    """What a pipeline was given is for Maintainers, and for who has started it while she may run something there.
    Raises 403."""
    if project.role >= Role.MAINTAINER:
        return
    if pipeline.user_id != caller(request).user_id:
        raise forbidden()
    await check_may_change(request, project, pipeline.ref, tag=pipeline.tag)


def short_ref(request: web.Request, project: Project, name: str) -> tuple[str, bool]:
    """The short name under which pipelines run on what `name` names, and whether that is a tag; the name of what the
    repository has not (any more) is taken for a branch's. Raises 400 for the name of a branch and a tag."""
    try:
        found = repository.resolve_ref(repositories(request), project.id, name)
    except AmbiguousNameError as problem:
        raise bad_request(f"Ref is ambiguous. {problem}") from None
    return (name, False) if found is None else (found.name, found.kind == "tag")


def archived_before(request: web.Request) -> datetime.datetime | None:
    """Jobs made before this moment are archived; None where jobs never are."""
    seconds = context.settings(request).archive_builds_older_than
    return context.now(request) - datetime.timedelta(seconds=seconds) if seconds else None


def check_not_archived(request: web.Request, created_at: datetime.datetime) -> None:
    """Raises 403 for what was made too long ago to be changed."""
    limit = archived_before(request)
    if limit is not None and created_at < limit:
        raise forbidden()


#: What the service makes of a request that fires a trigger, itself.
PAYLOAD = "TRIGGER_PAYLOAD"
REFUSAL = "Insufficient permissions to set pipeline variables"
_TRIGGERED = frozenset({"trigger", "pipeline"})
_JUDGED_BEFORE = frozenset({"parent_pipeline", "schedule"})


def check_may_give(project: Project, variables: Sequence[object]) -> None:
    """To be called before variables are kept for a job or a schedule of the project. Raises 403."""
    if variables and not project.takes_variables:
        raise forbidden()


def check_keys(keys: Iterable[str]) -> None:
    """Raises 400 for the first that no shell would take for one."""
    for key in keys:
        if found := rules.problems(rules.Values(key=key, value="")):
            raise invalid(found)


def check_may_begin_with(subject: Subject, source: str, variables: Sequence[Variable]) -> None:
    """Of each new pipeline, whatever starts it. Raises `ConfigError`, also for keys that no shell would take for one.
    Children have those of their own project's file, which everybody may run, and schedules what they were given when
    that was allowed."""
    if source in _JUDGED_BEFORE:
        return
    given = variables if source not in _TRIGGERED else [one for one in variables if one.key != PAYLOAD]
    if given and not subject.takes_variables:
        raise ConfigError(REFUSAL)
    for one in variables:
        for name, texts in rules.problems(rules.Values(key=one.key, value="")).items():
            raise ConfigError(*(f"Variables {name} {text}" for text in texts))
