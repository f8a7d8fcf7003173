"""The server's settings: attrs classes whose options come from the environment, a file and flags."""

from pathlib import Path
from typing import ClassVar, Literal

import typed_settings
from typed_settings import option, secret

from common.client_settings import ClientSettings
from common.logs import LogFormat, LogLevel
from common.settings import (
    count,
    file_of,
    host,
    matching,
    number,
    port,
    size,
    timeout,
    token,
    url,
    whole_seconds,
)


@typed_settings.settings(frozen=True, kw_only=True)
class RepositorySettings(ClientSettings):
    """Git over HTTP, files, differences, archives, pushes."""

    reloaded: ClassVar[frozenset[str]] = ClientSettings.reloaded | {
        "git_time_limit",
        "push_limit",
        "push_refs_limit",
        "repository_read_timeout",
        "file_json_limit",
        "commit_max_files",
        "diff_max_files",
        "diff_max_lines",
        "diff_max_patch_bytes",
        "notes_limit",
        "notes_size_limit",
        "lfs_limit",
    }

    git_processes: int = option(
        default=48, metadata=count(), help="git processes at once for clones, fetches and pushes of users"
    )
    git_anonymous_processes: int = option(
        default=16, metadata=count(), help="git processes at once for anonymous callers"
    )
    git_processes_each: int = option(
        default=12, metadata=count(), help="git processes at once for one user, anonymous address or project"
    )
    git_queue_timeout: int = option(
        default=15,
        metadata=whole_seconds(0),
        help="seconds that a git request waits for its turn; 0 does not wait",
    )
    git_time_limit: int = option(
        default=7200, metadata=whole_seconds(), help="seconds that one clone, fetch or push may take"
    )
    git_memory_limit: int = option(
        default=512 * 2**20, metadata=number(64 * 2**20, 2**50), help="bytes of memory of one git process"
    )
    git_cpu_limit: int = option(
        default=900, metadata=whole_seconds(), help="seconds of processor time of one git process"
    )

    housekeeping: bool = option(default=True, help="pack repositories that need it while nobody uses them")
    housekeeping_loose_objects: int = option(
        default=100, metadata=count(), help="number of loose objects at which a repository is packed"
    )
    housekeeping_loose_bytes: int = option(
        default=64 * 2**20,
        metadata=size(),
        help="bytes of loose objects at which a repository is packed",
    )
    housekeeping_packs: int = option(
        default=20, metadata=count(), help="number of packs at which a repository is packed again"
    )
    housekeeping_loose_refs: int = option(
        default=100,
        metadata=count(),
        help="number of loose refs, including those of kept commits, at which a repository's refs are packed",
    )
    housekeeping_max_delay: int = option(
        default=3600,
        metadata=whole_seconds(),
        help="seconds after which a repository that is always in use is packed anyway",
    )
    housekeeping_time_limit: int = option(
        default=7200, metadata=whole_seconds(), help="seconds that each packing git process may take"
    )
    housekeeping_large: int = option(
        default=1000,
        metadata=count(),
        help="number of objects at which a repository gets bitmaps and a commit-graph",
    )
    housekeeping_whole_bytes: int = option(
        default=256 * 2**20,
        metadata=size(),
        help="bytes of objects up to which a repository is repacked into one pack when it has doubled",
    )
    housekeeping_whole_days: int = option(
        default=7, metadata=count(), help="days after which a repository is repacked into one pack"
    )

    repository_reads: int = option(
        default=12,
        metadata=count(),
        help="git processes at once that read commits, trees and differences",
    )
    repository_reads_per_caller: int = option(
        default=4, metadata=count(), help="of these, for one user or one anonymous address"
    )
    repository_read_timeout: int = option(
        default=30,
        metadata=whole_seconds(),
        help="seconds after which reading commits, trees and differences is canceled",
    )
    repository_queue_timeout: float = option(
        default=10.0,
        metadata=timeout(0.0),
        help="seconds that a request waits for its turn to read before it is refused",
    )
    file_streams: int = option(default=40, metadata=count(), help="files above 256 KiB that are sent at once")
    file_streams_per_caller: int = option(
        default=6, metadata=count(), help="of these, for one user or one anonymous address"
    )
    file_json_limit: int = option(
        default=10 * 2**20,
        metadata=size(),
        help="bytes of a file that can be read as JSON; larger files can be read raw",
    )
    commit_max_files: int = option(
        default=100_000,
        metadata=count(),
        help="number of files up to which the API commits to a branch; larger branches need pushes",
    )
    diff_max_files: int = option(
        default=1000, metadata=count(), help="number of files that a difference between commits lists"
    )
    diff_max_lines: int = option(default=50_000, metadata=count(), help="lines of differences in one answer")
    diff_max_patch_bytes: int = option(
        default=512 * 2**10, metadata=size(), help="bytes of a file, and of its difference, that are shown"
    )
    notes_limit: int = option(
        default=5000, metadata=count(), help="maximum number of notes of a merge request"
    )
    notes_size_limit: int = option(
        default=64 * 2**20, metadata=size(), help="bytes of all notes of a merge request together"
    )

    archive_cache_bytes: int = option(
        default=2 * 2**30,
        metadata=size(),
        help="bytes of all stored archives, including those that are being built",
    )
    archive_limit: int = option(default=2**30, metadata=size(), help="bytes of one archive of a repository")
    archive_timeout: int = option(
        default=600, metadata=whole_seconds(), help="seconds that building one archive may take"
    )
    archive_wait: int = option(
        default=20,
        metadata=whole_seconds(0),
        help="seconds that an archive waits until it can be built, 0 does not wait; the edge waits for 60",
    )
    archive_builds: int = option(default=4, metadata=count(), help="archives that are built at the same time")
    archive_builds_each: int = option(
        default=2,
        metadata=count(),
        help="archives that are built at the same time for one user or address, or of one project",
    )
    push_limit: int = option(default=2 * 2**30, metadata=size(), help="bytes of one push's objects")
    push_refs_limit: int = option(
        default=5_000, metadata=count(), help="branches and tags that one push may move"
    )
    repository_size_limit: int = option(
        default=10 * 2**30,
        metadata=size(0),
        help="bytes of a project's repository and LFS objects together; 0 is off",
    )
    lfs_limit: int = option(default=5 * 2**30, metadata=size(), help="bytes of one LFS object")


@typed_settings.settings(frozen=True, kw_only=True)
class CiSettings(RepositorySettings):
    """Pipelines, what starts them automatically, runners, commit statuses, test reports."""

    reloaded: ClassVar[frozenset[str]] = RepositorySettings.reloaded | {
        "archive_builds_older_than",
        "runner_timeout",
        "runner_poll_timeout",
        "artifacts_expire_in",
        "pipeline_rate_limit",
        "pipeline_hierarchy_size",
        "child_pipeline_depth",
        "triggers_limit",
        "schedules_limit",
        "instance_variables_limit",
        "commit_statuses_limit",
        "ci_templates_dir",
        "test_cases_limit",
        "test_report_limit",
    }

    archive_builds_older_than: int = option(
        default=0, metadata=whole_seconds(0), help="seconds after which jobs are archived; 0 is never"
    )
    runner_timeout: int = option(
        default=3600,
        metadata=whole_seconds(),
        help="seconds of silence after which a runner's job fails as stuck",
    )
    hand_out_timeout: int = option(
        default=60,
        metadata=whole_seconds(),
        help="seconds in which a runner must send a first request after it got a job; otherwise another gets the"
        " job, once",
    )
    runner_poll_timeout: int = option(
        default=30,
        metadata=whole_seconds(0),
        help="seconds that a runner's request waits for a job; 0 does not wait",
    )
    artifacts_expire_in: int = option(
        default=30 * 86400,
        metadata=whole_seconds(0),
        help="seconds until artifacts expire if their job sets nothing; 0 is never",
    )
    pipeline_rate_limit: int = option(
        default=25,
        metadata=count(0),
        help="pipelines a minute of one user for one commit of a project; 0 is off",
    )
    git_push_pipeline_limit: int = option(
        default=4,
        metadata=count(0),
        help="number of branches and tags of one push that get a pipeline; 0 is all",
    )
    pipeline_hierarchy_size: int = option(
        default=1000,
        metadata=count(),
        help="pipelines that one pipeline may start, directly or indirectly, including itself",
    )
    child_pipeline_depth: int = option(
        default=3,
        metadata=count(),
        help="levels of pipelines in one project: parent, child, grandchild",
    )
    triggers_limit: int = option(
        default=25_000, metadata=count(0), help="pipeline triggers of one project; 0 is no limit"
    )
    schedules_limit: int = option(
        default=10, metadata=count(0), help="pipeline schedules of one project; 0 is no limit"
    )
    instance_variables_limit: int = option(
        default=25, metadata=count(0), help="variables of the instance for CI/CD; 0 is no limit"
    )
    commit_statuses_limit: int = option(
        default=5000,
        metadata=count(0),
        help="number of jobs of a pipeline, including statuses, at which it accepts no further commit status; 0 "
        "is no limit",
    )
    ci_templates_dir: Path | None = option(
        default=None, help="folder of the CI files that `include:template` names"
    )
    test_cases_limit: int = option(
        default=100_000, metadata=count(), help="test cases of a pipeline's reports that are read"
    )
    test_report_limit: int = option(
        default=64 * 2**20,
        metadata=size(),
        help="bytes of a pipeline's test reports, unpacked, that are read",
    )


Tier = Literal["free", "premium", "ultimate"]
UnsupportedParameters = Literal["ignore", "refuse"]
#: Pattern of GitLab's version, whose numbers clients compare.
GITLAB_VERSION = r"\d{1,2}(\.\d{1,3}){1,2}(-(ee|pre))?"
Offering = Literal["self_managed", "dedicated", "saas"]


@typed_settings.settings(frozen=True, kw_only=True)
class Settings(CiSettings):
    """Run the API server, with git over HTTP and the admin area."""

    reloaded: ClassVar[frozenset[str]] = CiSettings.reloaded | {
        "root_token_file",
        "root_token",
        "edge_purge_token_file",
        "edge_purge_token",
        "log_level",
        "emails_per_user",
        "emails_per_address",
        "variables_limit",
        "agents_limit",
        "status_checks_limit",
        "access_tokens_limit",
        "active_jobs_limit",
        "job_token_allowlist_limit",
        "release_links_limit",
        "jobs_rate_limit",
        "lint_rate_limit",
        "raw_rate_limit",
        "archive_rate_limit",
        "anonymous_archive_rate_limit",
        "early_body_limit",
        "runner_body_limit",
        "artifact_limit",
        "project_artifacts_limit",
        "log_limit",
        "failed_tasks_days",
        "samples_hours",
    }

    database_url: str = secret(
        kw_only=True,
        metadata=url("postgresql", "postgres"),
        help="PostgreSQL, as postgresql://user:password@host:port/name; several hosts with commas between them",
    )
    database_direct_url: str = secret(
        default="",
        metadata=url("postgresql", "postgres"),
        help="URL of PostgreSQL itself, if database_url leads to a pooler",
    )
    database_replica_urls: str = secret(
        default="", metadata=url("postgresql", "postgres", several=True), help="replicas that answer reads"
    )
    data_dir: Path = option(kw_only=True, help="folder of repositories, stored objects and the secret key")
    host: str = option(default="127.0.0.1", metadata=host(), help="address to listen on")
    port: int = option(default=8080, metadata=port(), help="port to listen on")
    testing: bool = option(
        default=False,
        help="be a server for tests: everybody who reaches it may reset it, move its clock and order failures",
    )
    external_url: str = option(
        default="",
        metadata=url("http", "https"),
        help="beginning of every URL in answers; default http://HOST:PORT",
    )
    root_token_file: Path | None = option(
        default=None,
        metadata=file_of("root_token"),
        help="file with a personal access token for the administrator `root`",
    )
    root_token: str = secret(
        default="",
        metadata=matching("8 to 255 visible ASCII characters without spaces", r"[\x21-\x7e]{8,255}"),
        help="the token itself; use the variable, because flags are visible in process lists",
    )

    tier: Tier = option(default="ultimate", help="features above this tier answer 403")
    offering: Offering = option(
        default="self_managed", help="kind of installation; some features exist only on some kinds"
    )

    gitlab_version: str = option(
        default="17.11.0",
        metadata=matching("a version such as 17.11 or 17.11.4-ee", GITLAB_VERSION, may_be_empty=False),
        help="version of GitLab in /version, /metadata and CI_SERVER_VERSION; the API stays the same",
    )
    unsupported_parameters: UnsupportedParameters = option(
        default="ignore",
        help="parameters of GitLab without an effect here: ignore them and name them in X-Ignored-Parameters, or"
        " refuse them with 400",
    )

    object_store_url: str = option(
        default="", metadata=url("file", "s3"), help="file:///... or s3://...; default is below data_dir"
    )
    object_store_timeout: float = option(
        default=20.0,
        metadata=timeout(),
        help="seconds that one request to an object store in S3 may take",
    )
    edge_urls: list[str] = option(
        factory=list,
        metadata=url("http", "https"),
        help="base URLs of the storage edges that are told about changes",
    )
    edge_purge_token_file: Path | None = option(
        default=None,
        metadata=file_of("edge_purge_token"),
        help="file with the token of the edges' purge API",
    )
    edge_purge_token: str = secret(
        default="",
        metadata=token(),
        help="the token itself; use the variable, because flags are visible in process lists",
    )
    edge_purge_timeout: float = option(
        default=2.0,
        metadata=timeout(),
        help="seconds that the answer to a change waits for an edge that does not answer",
    )
    smtp_url_file: Path | None = option(
        default=None,
        metadata=file_of("smtp_url"),
        help="file with the URL of the mail server: smtp://user:password@host:port",
    )
    smtp_url: str = secret(
        default="",
        metadata=url("smtp", "smtps"),
        help="the URL itself, for a server without a password; without a URL, mail is written to files",
    )
    mail_from: str = option(
        default="forgelet@localhost",
        metadata=matching("an address such as forgelet@example.org", r"[^@\s<>]+@[^@\s<>]+"),
        help="sender of mail",
    )
    emails_per_user: int = option(
        default=200,
        metadata=count(0),
        help="invitations and confirmations an hour that one user may cause; 0 is no limit",
    )
    emails_per_address: int = option(
        default=20,
        metadata=count(0),
        help="invitations and confirmations an hour to one address, and links for new passwords; 0 is no limit",
    )

    audit_head_minutes: int = option(
        default=60,
        metadata=count(0),
        help="minutes between copies of the audit trail's head in the log and the object store; 0 is never",
    )
    allow_local_requests: bool = option(
        default=False, help="deliveries, mirrors and include:remote may call local addresses"
    )
    status_check_timeout: int = option(
        default=0, metadata=whole_seconds(0), help="seconds until a pending result fails; 0 is never"
    )
    variables_limit: int = option(
        default=1000, metadata=count(0), help="CI/CD variables of one project or group; 0 is no limit"
    )
    agents_limit: int = option(
        default=100, metadata=count(0), help="cluster agents of one project; 0 is no limit"
    )
    status_checks_limit: int = option(
        default=100, metadata=count(0), help="external status checks of one project; 0 is no limit"
    )
    access_tokens_limit: int = option(
        default=200, metadata=count(0), help="access tokens of one project or group; 0 is no limit"
    )
    active_jobs_limit: int = option(
        default=20_000,
        metadata=count(0),
        help="unfinished jobs of a project's last day at which it gets no further pipeline; 0 is off",
    )
    job_token_allowlist_limit: int = option(
        default=200,
        metadata=count(),
        help="number of projects, and of groups, whose jobs a project lets in",
    )
    release_links_limit: int = option(
        default=500, metadata=count(0), help="links of one release; 0 is no limit"
    )
    jobs_rate_limit: int = option(
        default=600, metadata=count(0), help="requests a minute and user for a project's jobs; 0 is off"
    )
    lint_rate_limit: int = option(
        default=60, metadata=count(0), help="CI files that a user checks in a minute; 0 is off"
    )
    raw_rate_limit: int = option(
        default=300, metadata=count(0), help="requests a minute, project and path for raw files; 0 is off"
    )
    archive_rate_limit: int = option(
        default=60, metadata=count(0), help="requests a minute and user for archives; 0 is off"
    )
    anonymous_archive_rate_limit: int = option(
        default=100,
        metadata=count(0),
        help="requests a minute of all anonymous callers together for archives; 0 is off",
    )

    body_limit: int = option(
        default=10 * 2**20, metadata=size(), help="bytes of a request body that is not a stream"
    )
    early_body_limit: int = option(
        default=64 * 2**10, metadata=size(), help="bytes of a body that are read before the caller is known"
    )
    runner_body_limit: int = option(
        default=2**20,
        metadata=size(),
        help="bytes of a body with a runner's token",
    )
    bodies_limit: int = option(
        default=64 * 2**20, metadata=size(), help="bytes of all request bodies in memory together"
    )
    bodies_limit_per_address: int = option(
        default=32 * 2**20, metadata=size(), help="of these, bytes of bodies from one client address"
    )
    disk_reserve: int = option(
        default=2**30,
        metadata=size(0),
        help="bytes of the disk that stored objects and built archives leave free; 0 is off",
    )
    orphan_age: int = option(
        default=3600,
        metadata=whole_seconds(0),
        help="age in seconds at which the nightly sweep removes an object without a row, at least 3600; 0 is no "
        "sweep",
    )
    artifact_limit: int = option(default=2**30, metadata=size(), help="bytes of one uploaded artifact")
    project_artifacts_limit: int = option(
        default=100 * 2**30, metadata=size(0), help="bytes of all artifacts of one project; 0 is no limit"
    )
    artifact_members_limit: int = option(
        default=200_000, metadata=count(), help="files in one uploaded archive of artifacts"
    )
    artifact_unpacked_limit: int = option(
        default=20 * 2**30, metadata=size(), help="bytes of all files of one archive of artifacts, unpacked"
    )
    log_limit: int = option(default=100 * 2**20, metadata=size(), help="bytes of one job's log")
    database_pool: int = option(
        default=10, metadata=count(), help="connections to PostgreSQL of this process"
    )
    database_connect_timeout: float = option(
        default=5.0, metadata=timeout(), help="seconds in which PostgreSQL must accept a connection"
    )
    database_statement_timeout: float = option(
        default=15.0,
        metadata=timeout(),
        help="seconds that one statement may take; if PostgreSQL does not stop it within 5 more, the connection "
        "is given up",
    )
    prepare_statements: bool = option(
        default=True,
        help="turn this off behind a transaction pooler that is not detected automatically, as PgBouncer is",
    )
    workers: int = option(default=1, metadata=count(), help="number of worker processes behind a supervisor")
    work: bool = option(default=True, help="run background work in this process too")
    worker_timeout: float = option(
        default=30.0,
        metadata=timeout(1.0),
        help="seconds without a sign of life after which another process takes over background work",
    )
    failed_tasks_days: int = option(
        default=30,
        metadata=count(),
        help="days for which background tasks that failed permanently are kept",
    )
    samples_hours: int = option(
        default=48, metadata=count(), help="hours for which the figures of each minute are kept for operators"
    )
    log_format: LogFormat = option(
        default="auto", help="format of log lines; auto is text on a terminal, otherwise JSON"
    )
    log_level: LogLevel = option(default="INFO", help="lowest level that is logged")
    log_file: Path | None = option(
        default=None,
        help="file to which the log is appended instead of standard error; SIGHUP opens it again",
    )

    @property
    def base_url(self) -> str:
        """The external URL without a slash at its end."""
        return (self.external_url or f"http://{self.host}:{self.port}").rstrip("/")

    @property
    def unpooled_url(self) -> str:
        """The URL of the database for work that takes longer than a transaction: it leads to no pooler."""
        return self.database_direct_url or self.database_url

    @property
    def dialect(self) -> str:
        """`gitlab_version` with all of its three numbers, because scripts and clients split and compare it."""
        numbers, dash, edition = self.gitlab_version.partition("-")
        return numbers + ".0" * (2 - numbers.count(".")) + dash + edition
