"""From the peer's rows to its answers, where attributes of the one are not fields of the other."""

import datetime
from typing import Any

from scripts.bench.peer import fastapi_app, shapes
from scripts.bench.peer.shapes import BASE


def _basic(row: fastapi_app.Job) -> dict[str, Any]:
    now = datetime.datetime.now(datetime.UTC)
    path, ends = row.project.full_path, row.finished_at or now
    begun = row.started_at or ends
    return {
        "id": row.id,
        "status": row.status,
        "stage": row.stage,
        "name": row.name,
        "ref": row.pipeline.ref,
        "tag": row.pipeline.tag,
        "coverage": row.coverage,
        "allow_failure": row.allow_failure,
        "created_at": row.created_at,
        "started_at": row.started_at,
        "finished_at": row.finished_at,
        "erased_at": row.erased_at,
        "duration": (ends - row.started_at).total_seconds() if row.started_at else None,
        "queued_duration": (begun - row.queued_at).total_seconds() if row.queued_at else None,
        "user": shapes.user(row.user),
        "commit": shapes.Commit(**row.pipeline.commit, web_url=f"{BASE}/{path}/-/commit/{row.pipeline.sha}"),
        "pipeline": shapes.pipeline(row.pipeline, path),
        "web_url": f"{BASE}/{path}/-/jobs/{row.id}",
        "project": shapes.TokenScope(
            ci_job_token_scope_enabled=row.project.ci_inbound_job_token_scope_enabled
        ),
    }


def job(row: fastapi_app.Job) -> shapes.Job:
    return shapes.Job(
        **_basic(row),
        artifacts=[shapes.Artifact.model_validate(artifact) for artifact in row.artifacts],
        runner=_runner(row.runner),
        artifacts_expire_at=row.artifacts_expire_at,
        tag_list=row.tag_list,
        source=row.pipeline.source,
    )


def bridge(row: fastapi_app.Job) -> shapes.Bridge:
    return shapes.Bridge(
        **_basic(row), downstream_pipeline=shapes.pipeline(row.downstream, row.project.full_path)
    )


def _runner(row: fastapi_app.Runner | None) -> shapes.Runner | None:
    if row is None:
        return None
    hour = datetime.timedelta(hours=1)
    online = row.contacted_at is not None and datetime.datetime.now(datetime.UTC) - row.contacted_at < hour
    return shapes.Runner(
        id=row.id,
        description=row.description,
        active=row.active,
        paused=not row.active,
        is_shared=row.runner_type == "instance_type",
        runner_type=row.runner_type,
        name=row.name,
        online=online,
        status="online" if online else "offline",
    )


def event(row: fastapi_app.Event, author_email: str | None) -> shapes.Event:
    return shapes.Event(
        id=row.id,
        author_id=row.author_id,
        entity_id=row.entity_id,
        entity_type=row.entity_type,
        details={
            **row.details,
            "event_name": row.event_type,
            "author_name": row.author_name,
            "author_email": author_email,
            "author_class": "User" if row.author_id > 0 else "UnauthenticatedAuthor",
            "target_id": row.target_id,
            "target_type": row.target_type,
            "target_details": row.target_details,
            "ip_address": row.ip_address,
            "entity_path": row.entity_path,
        },
        created_at=row.created_at,
    )


def mirror(row: fastapi_app.Mirror) -> shapes.Mirror:
    names = shapes.Mirror.model_fields.keys() - {"url"}
    return shapes.Mirror(**{name: getattr(row, name) for name in names}, url=row.shown_url)


def invitation(row: fastapi_app.Invitation) -> shapes.Invitation:
    return shapes.Invitation(
        id=row.id,
        invite_email=row.email,
        created_at=row.created_at,
        access_level=row.access_level,
        expires_at=row.expires_at,
        created_by_name=row.created_by.name if row.created_by else None,
    )


def project(row: fastapi_app.Project) -> shapes.Project:
    owner = row.namespace
    return shapes.Project(
        id=row.id,
        description=row.description,
        name=row.name,
        name_with_namespace=f"{owner.full_name} / {row.name}",
        path=row.path,
        path_with_namespace=row.full_path,
        created_at=row.created_at,
        default_branch=None if row.empty_repo else row.default_branch,
        ssh_url_to_repo=f"ssh://git@127.0.0.1/{row.full_path}.git",
        http_url_to_repo=f"{BASE}/{row.full_path}.git",
        web_url=f"{BASE}/{row.full_path}",
        last_activity_at=row.last_activity_at,
        visibility=row.visibility,
        namespace=shapes.Namespace(
            id=owner.id,
            name=owner.name,
            path=owner.path,
            kind=owner.kind,
            full_path=owner.full_path,
            parent_id=owner.parent_id,
            web_url=f"{BASE}/groups/{owner.full_path}",
        ),
    )
