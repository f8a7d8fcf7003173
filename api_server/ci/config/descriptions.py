"""What the predefined variables are made of: descriptions of a server, project, pipeline, commit, job."""

from datetime import datetime

from attrs import frozen

_NO_SHA = "0" * 40


@frozen(kw_only=True)
class Server:
    """`url` is the configured external URL, without a trailing slash."""

    url: str
    version: str
    name: str = "forgelet"
    revision: str = ""


@frozen(kw_only=True)
class Project:
    """`full_path` is `group/sub/app`; `title` the name that people read."""

    id: int
    full_path: str
    title: str
    namespace_id: int
    visibility: str
    default_branch: str
    description: str = ""
    config_path: str = ".gitlab-ci.yml"


@frozen(kw_only=True)
class Commit:
    sha: str
    message: str
    author: str
    #: `Name <address>` is made of both.
    author_email: str
    timestamp: datetime


@frozen(kw_only=True)
class MergeRequest:
    id: int
    iid: int
    title: str
    source_branch: str
    source_project_id: int
    source_project_path: str
    target_branch: str
    source_sha: str = ""
    source_protected: bool = False
    target_sha: str = ""
    target_protected: bool = False
    diff_base_sha: str = ""
    description: str = ""
    description_is_truncated: bool = False
    draft: bool = False
    labels: tuple[str, ...] = ()


@frozen(kw_only=True)
class User:
    """Who started the pipeline, or this job of it."""

    id: int
    username: str
    name: str
    email: str


@frozen(kw_only=True)
class Pipeline:
    """`ref` is a short name (of a merge request its source branch); `source` one of GitLab's (`push`, `web`, `api`,
    `merge_request_event`, ...). `open_merge_requests` are those from the branch: `group/app!1,group/app!2`."""

    iid: int
    ref: str
    source: str
    created_at: datetime
    tag: bool = False
    tag_message: str = ""
    protected: bool = False
    before_sha: str = _NO_SHA
    name: str | None = None
    open_merge_requests: str = ""


@frozen(kw_only=True)
class Job:
    """What a planned job becomes at the moment it is handed to a runner."""

    id: int
    pipeline_id: int
    token: str
    started_at: datetime
    timeout: int
    manual: bool = False
    runner_id: int | None = None
    runner_description: str = ""
    runner_tags: tuple[str, ...] = ()
