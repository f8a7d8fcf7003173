"""The answers of the peer as pydantic describes them, in the shapes that ours have."""

import datetime
from typing import Any

from pydantic import BaseModel, ConfigDict

from scripts.bench.peer import fastapi_app

Moment = datetime.datetime
BASE = "http://127.0.0.1:8080"


class Shape(BaseModel):
    model_config = ConfigDict(from_attributes=True)


class User(Shape):
    id: int
    username: str
    public_email: str | None
    name: str
    state: str
    locked: bool = False
    avatar_url: str | None = None
    web_url: str
    created_at: Moment
    bio: str = ""
    location: str = ""
    skype: str = ""
    linkedin: str = ""
    twitter: str = ""
    discord: str = ""
    website_url: str = ""
    organization: str = ""
    job_title: str = ""
    pronouns: str | None = None
    bot: bool
    work_information: str | None = None
    followers: int = 0
    following: int = 0
    is_followed: bool = False
    local_time: str | None = None


class Commit(Shape):
    id: str
    short_id: str
    title: str
    created_at: str | None = None
    message: str | None = None
    author_name: str | None = None
    author_email: str | None = None
    web_url: str


class PipelineReference(Shape):
    id: int
    iid: int
    project_id: int
    sha: str
    ref: str
    status: str
    source: str
    created_at: Moment
    updated_at: Moment
    web_url: str


class Runner(Shape):
    id: int
    description: str | None
    ip_address: str | None = None
    active: bool
    paused: bool
    is_shared: bool
    runner_type: str
    name: str | None
    online: bool
    status: str


class Artifact(Shape):
    file_type: str
    size: int
    filename: str
    file_format: str


class TokenScope(Shape):
    ci_job_token_scope_enabled: bool


class BaseJob(Shape):
    id: int
    status: str
    stage: str
    name: str
    ref: str
    tag: bool
    coverage: float | None
    allow_failure: bool
    created_at: Moment
    started_at: Moment | None
    finished_at: Moment | None
    erased_at: Moment | None
    duration: float | None
    queued_duration: float | None
    user: User | None
    commit: Commit
    pipeline: PipelineReference
    web_url: str
    project: TokenScope
    archived: bool = False


class Job(BaseJob):
    artifacts: list[Artifact]
    runner: Runner | None
    runner_manager: None = None
    artifacts_expire_at: Moment | None
    tag_list: list[str]
    source: str


class Bridge(BaseJob):
    downstream_pipeline: PipelineReference | None


class Event(Shape):
    id: int
    author_id: int
    entity_id: int
    entity_type: str
    details: dict[str, Any]
    created_at: Moment


class Check(Shape):
    id: int
    name: str
    project_id: int
    external_url: str
    hmac: bool = False
    protected_branches: list[Any] = []
    applies_to_all_branches: bool = True
    paused: bool = False
    paused_at: Moment | None
    pause_reason: str | None
    failing_since: Moment | None


class CheckOfMergeRequest(Shape):
    id: int
    name: str
    external_url: str
    status: str


class Mirror(Shape):
    id: int
    enabled: bool
    url: str
    update_status: str
    last_update_at: Moment | None
    last_update_started_at: Moment | None
    last_successful_update_at: Moment | None
    last_error: str | None
    only_protected_branches: bool
    keep_divergent_refs: bool
    auth_method: str
    host_keys: list[Any]
    mirror_branch_regex: str | None


class Invitation(Shape):
    id: int
    invite_email: str
    created_at: Moment
    access_level: int
    expires_at: datetime.date | None
    user_name: str | None = None
    created_by_name: str | None


class Namespace(Shape):
    id: int
    name: str
    path: str
    kind: str
    full_path: str
    parent_id: int | None
    avatar_url: str | None = None
    web_url: str


class Project(Shape):
    id: int
    description: str | None
    name: str
    name_with_namespace: str
    path: str
    path_with_namespace: str
    created_at: Moment
    default_branch: str | None
    tag_list: list[str] = []
    topics: list[str] = []
    ssh_url_to_repo: str
    http_url_to_repo: str
    web_url: str
    readme_url: str | None = None
    forks_count: int = 0
    avatar_url: str | None = None
    star_count: int = 0
    last_activity_at: Moment
    visibility: str
    namespace: Namespace


def user(row: fastapi_app.User | None) -> User | None:
    if row is None:
        return None
    return User(
        id=row.id,
        username=row.username,
        public_email=row.public_email,
        name=row.name,
        state=row.state,
        web_url=f"{BASE}/{row.username}",
        created_at=row.created_at,
        bio=row.bio or "",
        location=row.location or "",
        website_url=row.website_url or "",
        organization=row.organization or "",
        job_title=row.job_title or "",
        bot=row.bot,
    )


def pipeline(row: fastapi_app.Pipeline | None, path: str) -> PipelineReference | None:
    if row is None:
        return None
    return PipelineReference(
        id=row.id,
        iid=row.iid,
        project_id=row.project_id,
        sha=row.sha,
        ref=row.ref,
        status=row.status,
        source=row.source,
        created_at=row.created_at,
        updated_at=row.updated_at,
        web_url=f"{BASE}/{path}/-/pipelines/{row.id}",
    )
