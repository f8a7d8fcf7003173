"""Settings of the storage edge."""

from pathlib import Path
from typing import ClassVar, Literal

import attrs
import typed_settings
from yarl import URL

from common.client_settings import ClientSettings
from common.logs import LogFormat, LogLevel
from common.settings import count, file_of, host, matching, needs, number, port, size, timeout, token, url
from common.static_paths import EXTERNAL_STORAGE_TOKEN_HEADER, STATIC_OBJECT_TOKEN_HEADER

OriginFlavour = Literal["service", "gitlab"]

_KIB = 1024
_MIB = 1024 * _KIB
_GIB = 1024 * _MIB


@attrs.frozen
class TokenHeaders:
    """The two request headers that an origin reads: the storage's own token and the user's."""

    storage: str
    user: str


#: Header names by origin flavour.
TOKEN_HEADERS = {
    "service": TokenHeaders(EXTERNAL_STORAGE_TOKEN_HEADER, STATIC_OBJECT_TOKEN_HEADER),
    "gitlab": TokenHeaders("X-Gitlab-External-Storage-Token", "X-Gitlab-Static-Object-Token"),
}


@typed_settings.settings(frozen=True, kw_only=True)
class Settings(ClientSettings):
    """Run a storage edge, which caches raw files and archives of the service behind it.

    The service's administrator sets this edge's URL and the storage token as external storage for static objects.
    """

    reloaded: ClassVar[frozenset[str]] = ClientSettings.reloaded | {
        "trusted_proxies",
        "tls_cert",
        "tls_key",
        "origin",
        "origin_flavour",
        "origin_ca",
        "origin_cert",
        "origin_key",
        "origin_tls_name",
        "origin_connections",
        "origin_connections_per_address",
        "origin_queue_timeout",
        "origin_connect_timeout",
        "origin_timeout",
        "origin_read_timeout",
        "origin_check_interval",
        "origin_check_path",
        "storage_token_file",
        "storage_token",
        "purge_token_file",
        "purge_token",
        "client_rate",
        "client_burst",
        "client_origin_rate",
        "client_origin_burst",
        "memory_bytes",
        "memory_object_bytes",
        "disk_bytes",
        "disk_check_rate",
        "private_grace",
        "negative_seconds",
        "stale_when_unreachable",
        "client_directives",
        "forward_all_headers",
        "compress_from",
        "log_level",
    }

    host: str = typed_settings.option(default="127.0.0.1", metadata=host(), help="Address to listen on.")
    port: int = typed_settings.option(
        default=8081, metadata=port(0), help="Port to listen on; 0 takes a free one."
    )
    reuse_port: bool = typed_settings.option(
        default=False,
        help="Let several edge processes share the port (SO_REUSEPORT); give them one data directory.",
    )
    workers: int = typed_settings.option(
        default=1,
        metadata=count(),
        help="Number of worker processes behind a supervisor; they share the data directory.",
    )
    tls_cert: Path | None = typed_settings.option(default=None, help="PEM certificate chain; turns TLS on.")
    tls_key: Path | None = typed_settings.option(
        default=None, metadata=needs("tls_cert"), help="PEM private key of the certificate."
    )

    origin: str = typed_settings.option(
        default="http://127.0.0.1:8080", metadata=url("http", "https", bare=True), help="URL of the service."
    )
    origin_flavour: OriginFlavour = typed_settings.option(
        default="service",
        help="Kind of origin, which decides the header names: this service or a real GitLab.",
    )
    origin_connections: int = typed_settings.option(
        default=64, metadata=count(), help="Maximum number of requests at the origin at one time."
    )
    origin_connections_per_address: int = typed_settings.option(
        default=16, metadata=count(), help="Of these, for one client address (IPv6: one /64)."
    )
    origin_queue_timeout: float = typed_settings.option(
        default=5.0,
        metadata=timeout(0.0),
        help="Seconds that a further request waits; then it is refused with 503.",
    )
    origin_connect_timeout: float = typed_settings.option(
        default=10.0,
        metadata=timeout(),
        help="Seconds that a connection to the origin may take, including name, TCP and TLS.",
    )
    origin_timeout: float = typed_settings.option(
        default=60.0,
        metadata=timeout(),
        help="Seconds that the origin may take to connect and to send the head of its answer.",
    )
    origin_read_timeout: float = typed_settings.option(
        default=0.0,
        metadata=timeout(0.0),
        help="Seconds between two pieces of a body from the origin; 0 uses origin_timeout.",
    )
    origin_check_interval: float = typed_settings.option(
        default=10.0,
        metadata=timeout(0.0),
        help="Seconds between checks that the origin answers and accepts the storage token; 0 checks only in "
        "/-/readiness.",
    )
    origin_check_path: str = typed_settings.option(
        default="",
        metadata=matching("a path that begins with a slash", r"/[\x21-\x7e]*"),
        help="Path of a public file, such as /group/project/-/raw/main/README.md, used to check the storage "
        "token; needed for a GitLab, not for this service.",
    )
    origin_ca: Path | None = typed_settings.option(
        default=None, help="PEM certificates that are trusted for the origin, instead of the system's."
    )
    origin_cert: Path | None = typed_settings.option(
        default=None, help="PEM certificate chain that the edge shows to the origin."
    )
    origin_key: Path | None = typed_settings.option(
        default=None, metadata=needs("origin_cert"), help="PEM private key of that certificate."
    )
    origin_tls_name: str = typed_settings.option(
        default="",
        metadata=matching("the name of a host", r"[\w.-]+"),
        help="Name that the origin's certificate must have (also for SNI), if it is not the host of origin.",
    )
    storage_token_file: Path | None = typed_settings.option(
        default=None,
        metadata=file_of("storage_token"),
        help="File with the external storage token that is set in the service.",
    )
    storage_token: typed_settings.SecretStr = typed_settings.secret(
        default=typed_settings.SecretStr(""),
        metadata=token(),
        help="The token itself; use the variable, because flags are visible in process lists.",
    )
    purge_token_file: Path | None = typed_settings.option(
        default=None,
        metadata=file_of("purge_token"),
        help="File with the token for POST /-/purge, GET /-/status and /-/stored; without it, these routes do "
        "not exist.",
    )
    purge_token: typed_settings.SecretStr = typed_settings.secret(
        default=typed_settings.SecretStr(""),
        metadata=token(),
        help="The token itself; use the variable, because flags are visible in process lists.",
    )

    data_dir: Path | None = typed_settings.option(
        default=None,
        help="Directory of the disk tier; the default is a temporary one that is removed when the process ends.",
    )
    memory_bytes: int = typed_settings.option(
        default=64 * _MIB, metadata=size(0), help="Bytes of the memory tier; 0 keeps nothing there."
    )
    memory_object_bytes: int = typed_settings.option(
        default=4 * _MIB,
        metadata=size(0),
        help="Largest body in the memory tier, 0 is none; larger ones are read from disk.",
    )
    disk_bytes: int = typed_settings.option(
        default=10 * _GIB,
        metadata=number(_MIB, 2**50),
        help="Bytes of the disk tier, including arriving bodies.",
    )
    disk_check_rate: int = typed_settings.option(
        default=_MIB,
        metadata=size(0),
        help="Bytes of the disk tier that are checked for damage in a second; 0 turns that off.",
    )

    shared_store_url: str = typed_settings.option(
        default="",
        metadata=url("s3", "file"),
        help="Tier that several edges share for public objects, from which new edges start warm: "
        "s3://bucket/prefix or file:///directory. Credentials and region come from the usual AWS_... variables.",
    )
    shared_store_timeout: float = typed_settings.option(
        default=2.0,
        metadata=timeout(),
        help="Seconds that the shared tier may take for an object; then the whole object comes from the origin.",
    )
    shared_store_pause: float = typed_settings.option(
        default=10.0,
        metadata=timeout(),
        help="Seconds after which a failed shared tier is tried again.",
    )

    private_grace: float = typed_settings.option(
        default=0.0,
        metadata=timeout(0.0),
        help="Seconds for which a user's access to a private object is not checked again.",
    )
    negative_seconds: float = typed_settings.option(
        default=1.0,
        metadata=timeout(0.0),
        help="How long a 404 or 410 without a lifetime of its own is kept, for requests without a token.",
    )
    stale_when_unreachable: float = typed_settings.option(
        default=0.0,
        metadata=timeout(0.0),
        help="Seconds for which stale public objects are served while the origin cannot be reached, in addition "
        "to the origin's own stale-if-error.",
    )
    client_directives: bool = typed_settings.option(
        default=True, help="Honour Cache-Control of requests (a browser's reload asks the origin)."
    )
    forward_all_headers: bool = typed_settings.option(
        default=False, help="Forward all end-to-end request headers. For conformance tests; leave it off."
    )

    client_rate: float = typed_settings.option(
        default=0.0,
        metadata=number(0.0, 1e6),
        help="Requests a second of one client address (IPv6: one /64); beyond it 429; 0 is no limit.",
    )
    client_burst: int = typed_settings.option(
        default=100, metadata=count(), help="Requests at once before client_rate applies."
    )
    client_origin_rate: float = typed_settings.option(
        default=0.0,
        metadata=number(0.0, 1e6),
        help="Requests a second of one client address that go on to the origin (for private objects, and for "
        "those that are not stored); beyond it 429; 0 is no limit.",
    )
    client_origin_burst: int = typed_settings.option(
        default=100, metadata=count(), help="Such requests at once before client_origin_rate applies."
    )
    compress_from: int = typed_settings.option(
        default=1024,
        metadata=size(0),
        help="Bytes from which public text is compressed for clients that accept gzip; 0 compresses nothing.",
    )

    testing: bool = typed_settings.option(
        default=False,
        help="Be the edge of a server for tests: everybody with the purge token may reset it and move its clock.",
    )
    access_log: bool = typed_settings.option(default=True, help="Log every request, without its token.")
    log_format: LogFormat = typed_settings.option(
        default="auto", help="Format of log lines; auto is text on a terminal, otherwise JSON."
    )
    log_level: LogLevel = typed_settings.option(default="INFO", help="Lowest level that is logged.")
    log_file: Path | None = typed_settings.option(
        default=None,
        help="File to which the log is appended instead of standard error; SIGHUP opens it again.",
    )

    @property
    def origin_url(self) -> URL:
        """The origin's scheme, host and port."""
        return URL(self.origin).origin()

    @property
    def token_headers(self) -> TokenHeaders:
        """The header names of the origin's flavour."""
        return TOKEN_HEADERS[self.origin_flavour]
