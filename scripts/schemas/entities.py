"""Which part of which entities.sql is which entity, and what is made of them."""

import importlib
import pkgutil
from collections.abc import Iterator
from typing import Any

import api_server
from api_server.description.schemas.notation import Schema, reference
from api_server.state.listing import Listing, read_sql
from api_server.state.statements import Query
from scripts.schemas import catalog
from scripts.schemas.evaluator import Evaluator

#: By the function of `state/functions.sql` and `state/merge_request_functions.sql` that makes it.
OF_FUNCTIONS = {
    "user_basic": "UserBasic",
    "user_public": "UserPublic",
    "pipeline_basic": "PipelineBasic",
    "pipeline_in_list": "PipelineInList",
    "runner_basic": "Runner",
    "runner_manager_basic": "RunnerManager",
    "config_project": "ProjectIdentity",
    "member_role": "MemberRole",
}

#: By the folder below `api_server` and the part of its entities.sql. `None` has its name by a function, or is completed
#: by Python, and then in declared.toml.
OF_PARTS: dict[str, dict[str, str | None]] = {
    "accounts.emails": {"email": "Email"},
    "accounts.member_roles": {"member_role": None},
    "accounts.tokens": {"token": "PersonalAccessToken", "new_token": "PersonalAccessTokenWithToken"},
    "accounts.users": {
        "basic_user": None,
        "user": "User",
        "own_user": "CurrentUser",
        "user_for_administrators": "UserWithAdmin",
        "user_in_detail": "UserDetailsWithAdmin",
    },
    "audit": {"event": "AuditEvent"},
    "ci.agents": {"agent": "ClusterAgent"},
    "ci.commit_statuses": {"commit_status": "CommitStatus"},
    "ci.jobs": {"job": "Job", "runner_job": "RunnerJob", "bridge": "Bridge"},
    "ci.pipelines": {"pipeline_in_list": None, "pipeline_basic": None, "pipeline": "Pipeline"},
    "ci.runners": {"runner": None, "runner_details": "RunnerDetail", "manager": None},
    "ci.schedules": {"schedule": "PipelineSchedule", "schedule_details": "PipelineScheduleDetail"},
    "ci.triggers": {"trigger": "Trigger"},
    "ci.variables": {"variable": "Variable", "instance_variable": "InstanceVariable"},
    "code.branches": {"protected_branch": "ProtectedBranch"},
    "code.tags": {"protected_tag": "ProtectedTag"},
    "invitations": {"invitation": "Invitation", "changed": "ChangedInvitation"},
    "merge_requests": {
        "merge_request": "MergeRequestBasic",
        "merge_request_details": "MergeRequest",
        "reviewer": "MergeRequestReviewer",
        "participant": None,
        "approvals": "MergeRequestApprovals",
    },
    "merge_requests.notes": {"note": "Note", "discussion": "Discussion"},
    "merge_requests.versions": {"version": "MergeRequestDiff"},
    "mirrors": {"mirror": "RemoteMirror"},
    "namespaces.access_tokens": {
        "token": "ResourceAccessToken",
        "new_token": "ResourceAccessTokenWithToken",
    },
    "namespaces.groups": {
        "basic_group": "BasicGroup",
        "group": "Group",
        "group_in_detail": "GroupDetail",
        "namespace": "Namespace",
    },
    "namespaces.members": {"membership": "Membership", "user": None, "member": "Member"},
    "namespaces.projects": {"basic_project": "BasicProject", "project": "Project"},
    "releases": {"link": None, "release": None},
    "status_checks": {
        "service": "ExternalStatusCheck",
        "check": "MergeRequestStatusCheck",
        "response": "StatusCheckAnswer",
        "delivery": "StatusCheckDelivery",
        "delivery_with_attempts": "StatusCheckDeliveryDetail",
    },
}

#: Folders whose parts include those of others.
_INCLUDES = {
    "merge_requests": "ci.pipelines",
    "namespaces.access_tokens": "accounts.tokens",
    "namespaces.projects": "namespaces.groups",
}


def entities(cursor: Any) -> dict[str, Schema]:
    """Every entity by its name, as PostgreSQL says in which `cursor` is, with the tables of this version."""
    evaluator = Evaluator(catalog.read(cursor), OF_FUNCTIONS)
    made = {
        name or "": evaluator.entity(statement_with(part_of(folder, part)))
        for folder, parts in OF_PARTS.items()
        for part, name in parts.items()
    }
    made.pop("")
    made |= evaluator.entities
    return {name: _finished(made[name], made, top=True) for name in sorted(made)}


def _finished(schema: Schema, made: dict[str, Schema], *, top: bool = False) -> Schema:
    """With references to the entities that are in it, and without values that are the only one of their key."""
    if not top and "properties" in schema:
        for name, entity in made.items():
            if entity == schema:
                return reference(name)
    finished: Schema = {}
    for key, value in schema.items():
        match key:
            case "enum" if len(value) == 1:
                continue
            case "properties":
                finished[key] = {name: _finished(one, made) for name, one in value.items()}
            case "anyOf":
                finished[key] = [_finished(one, made) for one in value]
            case "items":
                finished[key] = _finished(value, made)
            case _:
                finished[key] = value
    return finished


def part_of(folder: str, part: str) -> str:
    """The SQL of a part."""
    included = _INCLUDES.get(folder)
    known = read_sql(f"api_server.{included}") if included else None
    return read_sql(f"api_server.{folder}", known=known)[part]


def statement_with(entity: str) -> Query[Any]:
    """The shortest of the statements that read an entity."""
    return min(
        (one for one in _statements() if f"entities AS ({entity})" in one), key=lambda one: (len(one), one)
    )


def _statements() -> Iterator[Query[Any]]:
    for found in pkgutil.walk_packages(api_server.__path__, "api_server."):
        if not found.name.endswith("__main__"):
            for value in vars(importlib.import_module(found.name)).values():
                if isinstance(value, Query):
                    yield value
                elif isinstance(value, Listing):
                    yield from value._statements.values()
                elif isinstance(value, dict):
                    yield from (one for one in value.values() if isinstance(one, Query))
