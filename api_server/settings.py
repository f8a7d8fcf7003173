"""What an operator sets for the API server process (flags, environment, TOML file)."""

from pathlib import Path
from typing import ClassVar, Literal

import typed_settings
from typed_settings import option, secret

from common.client_settings import ClientSettings
from common.logs import LogFormat, LogLevel
from common.settings import file_of, url

Tier = Literal["free", "premium", "ultimate"]
Offering = Literal["self_managed", "dedicated", "saas"]


@typed_settings.settings(frozen=True, kw_only=True)
class Settings(ClientSettings):
    """The API server: GitLab's /api/v4, git over HTTP, static objects, the admin area."""

    reloaded: ClassVar[frozenset[str]] = ClientSettings.reloaded | {
        "root_token_file",
        "root_token",
        "edge_purge_token_file",
        "edge_purge_token",
        "log_level",
        "letters_per_user",
        "letters_per_address",
        "archive_builds_older_than",
        "runner_timeout",
        "runner_poll_timeout",
        "artifacts_expire_in",
        "pipeline_rate_limit",
        "pipeline_hierarchy_size",
        "child_pipeline_depth",
        "variables_limit",
        "agents_limit",
        "status_checks_limit",
        "active_jobs_limit",
        "job_token_allowlist_limit",
        "jobs_rate_limit",
        "raw_rate_limit",
        "archive_rate_limit",
        "anonymous_archive_rate_limit",
        "git_time_limit",
        "push_limit",
        "push_refs_limit",
        "repository_read_timeout",
        "file_json_limit",
        "commit_max_files",
        "diff_max_files",
        "diff_max_lines",
        "diff_max_patch_bytes",
        "early_body_limit",
        "runner_body_limit",
        "artifact_limit",
        "project_artifacts_limit",
        "lfs_limit",
        "log_limit",
    }

    database_url: str = secret(
        kw_only=True,
        metadata=url("postgresql", "postgres"),
        help="PostgreSQL, as postgresql://user:password@host:port/name",
    )
    data_dir: Path = option(
        kw_only=True, help="repositories, stored objects and the secret key live below this folder"
    )
    host: str = option(default="127.0.0.1", help="address to listen on")
    port: int = option(default=8080, help="port to listen on")
    external_url: str = option(
        default="",
        metadata=url("http", "https"),
        help="base of every URL in answers; default http://HOST:PORT",
    )
    root_token_file: Path | None = option(
        default=None,
        metadata=file_of("root_token"),
        help="file that holds the preset personal access token of the administrator `root`",
    )
    root_token: str = secret(
        default="", help="that token itself: by the variable, since a flag shows in process lists"
    )

    tier: Tier = option(default="ultimate", help="features above this tier answer 403")
    offering: Offering = option(
        default="self_managed", help="where it runs; some features exist on some only"
    )

    object_store_url: str = option(
        default="", metadata=url("file", "s3"), help="file:///... or s3://...; default is below data_dir"
    )
    edge_urls: list[str] = option(
        factory=list,
        metadata=url("http", "https"),
        help="base URLs of the storage edges that are told of changes",
    )
    edge_purge_token_file: Path | None = option(
        default=None,
        metadata=file_of("edge_purge_token"),
        help="file that holds the token of the edges' purge API",
    )
    edge_purge_token: str = secret(
        default="", help="that token itself: by the variable, since a flag shows in process lists"
    )
    smtp_url: str = secret(
        default="",
        metadata=url("smtp", "smtps"),
        help="smtp://user:password@host:port; without it mail is written to files",
    )
    mail_from: str = option(default="forgelet@localhost", help="sender of mail")
    letters_per_user: int = option(
        default=200, help="invitations and confirmations an hour that one user has mailed; 0 is no limit"
    )
    letters_per_address: int = option(
        default=20, help="invitations and confirmations an hour to one address; 0 is no limit"
    )

    audit_head_minutes: int = option(
        default=60,
        help="minutes until the audit trail's head is kept in log and object store again; 0 is never",
    )
    allow_local_requests: bool = option(default=False, help="deliveries and mirrors may call local addresses")
    status_check_timeout: int = option(default=0, help="seconds until a pending result fails; 0 is never")
    archive_builds_older_than: int = option(
        default=0, help="seconds after which jobs are archived; 0 is never"
    )
    runner_timeout: int = option(
        default=3600, help="seconds of silence after which a runner's job fails as stuck"
    )
    runner_poll_timeout: int = option(
        default=30, help="seconds that a runner's request for a job waits for one; 0 is not at all"
    )
    artifacts_expire_in: int = option(
        default=30 * 86400, help="seconds until artifacts expire whose job says nothing; 0 is never"
    )
    pipeline_rate_limit: int = option(
        default=25, help="pipelines a minute of one user for one commit of a project; 0 is off"
    )
    git_push_pipeline_limit: int = option(
        default=4, help="branches and tags of one push that get a pipeline, the first ones; 0 is all"
    )
    pipeline_hierarchy_size: int = option(
        default=1000, help="pipelines that one pipeline may have started, directly or not, itself included"
    )
    child_pipeline_depth: int = option(
        default=3, help="pipelines of one project above one another: parent, child, grandchild"
    )
    variables_limit: int = option(default=1000, help="CI/CD variables of one project or group; 0 is no limit")
    agents_limit: int = option(default=100, help="cluster agents of one project; 0 is no limit")
    status_checks_limit: int = option(
        default=100, help="external status checks of one project; 0 is no limit"
    )
    active_jobs_limit: int = option(
        default=20_000,
        help="unfinished jobs of a project's last day beyond which it gets no pipeline; 0 is off",
    )
    job_token_allowlist_limit: int = option(
        default=200,
        help="projects, and groups, on the list of those whose jobs reach a project with their tokens",
    )
    jobs_rate_limit: int = option(
        default=600, help="requests a minute and user for a project's jobs; 0 is off"
    )
    raw_rate_limit: int = option(
        default=300, help="requests a minute, project and path for raw files; 0 is off"
    )
    archive_rate_limit: int = option(default=60, help="requests a minute and user for archives; 0 is off")
    anonymous_archive_rate_limit: int = option(
        default=100, help="requests a minute of all anonymous callers together for archives; 0 is off"
    )

    git_processes: int = option(
        default=48, help="gits that run at once for clones, fetches and pushes of users"
    )
    git_anonymous_processes: int = option(default=16, help="gits that run at once for strangers")
    git_processes_each: int = option(
        default=12, help="gits that run at once for one user, stranger's address or project"
    )
    git_queue_timeout: int = option(default=15, help="seconds that a git request waits for its turn")
    git_time_limit: int = option(default=7200, help="seconds that one clone, fetch or push may take")
    git_memory_limit: int = option(default=512 * 2**20, help="bytes of memory of one git process")
    git_cpu_limit: int = option(default=900, help="seconds of processor time of one git process")

    repository_reads: int = option(
        default=12, help="git processes at once that read commits, trees and differences for callers"
    )
    repository_reads_per_caller: int = option(
        default=4, help="those of one user, or of one stranger's address"
    )
    repository_read_timeout: int = option(
        default=30, help="seconds after which reading commits, trees and differences is given up"
    )
    repository_patience: float = option(
        default=10.0, help="seconds that a request waits for its turn to read before it is refused"
    )
    file_streams: int = option(default=40, help="files beyond 256 KiB that flow to readers at once")
    file_streams_per_caller: int = option(default=6, help="those of one user, or of one stranger's address")
    file_json_limit: int = option(
        default=10 * 2**20, help="bytes of a file that is answered as JSON; larger ones are read raw"
    )
    commit_max_files: int = option(
        default=100_000, help="files of a branch to which the API commits; larger ones are pushed to"
    )
    diff_max_files: int = option(default=1000, help="files that a difference between commits lists")
    diff_max_lines: int = option(default=50_000, help="lines of differences that one answer shows")
    diff_max_patch_bytes: int = option(
        default=512 * 2**10, help="bytes of a file, and of its difference, that are shown"
    )

    archive_cache_bytes: int = option(
        default=2 * 2**30, help="bytes of built archives that are kept, with those that are being built"
    )
    archive_limit: int = option(default=2**30, help="bytes of one archive of a repository")
    archive_timeout: int = option(default=600, help="seconds that building one archive may take")
    archive_wait: int = option(
        default=20,
        help="seconds for which an archive waits to be built while others are; the edge waits for 60",
    )
    archive_builds: int = option(default=4, help="archives that are built at the same time")
    archive_builds_each: int = option(
        default=2, help="archives that are built at the same time for one user or address, or of one project"
    )
    body_limit: int = option(default=10 * 2**20, help="bytes of a request body that is not a stream")
    early_body_limit: int = option(
        default=64 * 2**10, help="bytes of a body that are read before it is known who calls"
    )
    runner_body_limit: int = option(
        default=2**20, help="bytes of a body in which a runner sends the token that says who it is"
    )
    bodies_limit: int = option(
        default=64 * 2**20, help="bytes of all request bodies together that are in memory"
    )
    bodies_limit_per_address: int = option(
        default=32 * 2**20, help="of these, bytes of bodies from one client address"
    )
    disk_reserve: int = option(
        default=2**30, help="bytes of the disk that stored objects and built archives leave free; 0 is off"
    )
    artifact_limit: int = option(default=2**30, help="bytes of one uploaded artifact")
    project_artifacts_limit: int = option(
        default=100 * 2**30, help="bytes of all artifacts of one project; 0 is no limit"
    )
    artifact_members_limit: int = option(default=200_000, help="files in one uploaded archive of artifacts")
    artifact_unpacked_limit: int = option(
        default=20 * 2**30, help="bytes of all files of one archive of artifacts, unpacked"
    )
    push_limit: int = option(default=2 * 2**30, help="bytes of one push's objects")
    push_refs_limit: int = option(default=5_000, help="branches and tags that one push may move")
    repository_size_limit: int = option(
        default=10 * 2**30, help="bytes of a project's repository and LFS objects together; 0 is off"
    )
    lfs_limit: int = option(default=5 * 2**30, help="bytes of one LFS object")
    log_limit: int = option(default=100 * 2**20, help="bytes of one job's log")
    database_pool: int = option(default=10, help="connections to PostgreSQL of this process")
    prepare_statements: bool = option(default=True, help="off behind a transaction-pooling PgBouncer")
    work: bool = option(default=True, help="run background work in this process too")
    log_format: LogFormat = option(default="console", help="how log lines look")
    log_level: LogLevel = option(default="INFO", help="least level that is logged")
    log_file: Path | None = option(
        default=None, help="file to which the log is appended instead of standard error; SIGHUP opens it anew"
    )

    @property
    def base_url(self) -> str:
        """The external URL without a slash at its end."""
        return (self.external_url or f"http://{self.host}:{self.port}").rstrip("/")
