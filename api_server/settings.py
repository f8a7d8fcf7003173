"""What an operator sets for the API server process (flags, environment, TOML file)."""

from pathlib import Path
from typing import Literal

import typed_settings
from typed_settings import option, secret

from common.logs import LogFormat
from common.settings import network, url

Tier = Literal["free", "premium", "ultimate"]
Offering = Literal["self_managed", "dedicated", "saas"]


@typed_settings.settings(frozen=True, kw_only=True)
class Settings:
    """The API server: GitLab's /api/v4, git over HTTP, static objects, the admin area."""

    database_url: str = secret(
        metadata=url("postgresql", "postgres"),
        help="PostgreSQL, as postgresql://user:password@host:port/name",
    )
    data_dir: Path = option(help="repositories, stored objects and the secret key live below this folder")
    host: str = option(default="127.0.0.1", help="address to listen on")
    port: int = option(default=8080, help="port to listen on")
    external_url: str = option(
        default="",
        metadata=url("http", "https"),
        help="base of every URL in answers; default http://HOST:PORT",
    )
    trusted_proxies: list[str] = option(
        factory=list,
        metadata=network(),
        help="addresses and networks of proxies whose X-Forwarded-For tells the client's address",
    )
    root_token: str = secret(default="", help="preset personal access token of the administrator `root`")

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
    edge_purge_token: str = secret(default="", help="token of the edges' purge API")
    smtp_url: str = secret(
        default="",
        metadata=url("smtp", "smtps"),
        help="smtp://user:password@host:port; without it mail is written to files",
    )
    mail_from: str = option(default="forgelet@localhost", help="sender of mail")

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

    repository_reads: int = option(
        default=20, help="git processes at once that read commits, trees and differences for callers"
    )
    repository_reads_per_caller: int = option(
        default=8, help="those of one user, or of one stranger's address"
    )
    repository_read_timeout: int = option(
        default=30, help="seconds after which reading commits, trees and differences is given up"
    )
    repository_patience: float = option(
        default=10.0, help="seconds that a request waits for its turn to read before it is refused"
    )
    file_streams: int = option(default=100, help="files beyond 256 KiB that flow to readers at once")
    file_streams_per_caller: int = option(default=10, help="those of one user, or of one stranger's address")
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

    archive_cache_bytes: int = option(default=2 * 2**30, help="bytes of built archives that are kept")
    body_limit: int = option(default=10 * 2**20, help="bytes of a request body that is not a stream")
    artifact_limit: int = option(default=2**30, help="bytes of one uploaded artifact")
    lfs_limit: int = option(default=5 * 2**30, help="bytes of one LFS object")
    log_limit: int = option(default=100 * 2**20, help="bytes of one job's log")
    database_pool: int = option(default=10, help="connections to PostgreSQL of this process")
    prepare_statements: bool = option(default=True, help="off behind a transaction-pooling PgBouncer")
    work: bool = option(default=True, help="run background work in this process too")
    log_format: LogFormat = option(default="console", help="how log lines look")

    @property
    def base_url(self) -> str:
        """The external URL without a slash at its end."""
        return (self.external_url or f"http://{self.host}:{self.port}").rstrip("/")
