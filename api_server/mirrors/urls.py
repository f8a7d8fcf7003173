"""Mirror URLs: taking credentials out, comparing two of them, recognising the project itself."""

import re
from urllib.parse import quote, unquote, urlsplit

import attrs

from api_server.outbound.destinations import DEFAULT_PORTS

_SCP_FORM = re.compile(r"(?:[^@/\s]+@)?(?P<host>[^:/\s]+):(?!//)(?P<path>.+)")


@attrs.frozen
class MirrorUrl:
    """A mirror's target: `url` without credentials, and the credentials it came with, percent-decoded."""

    url: str
    user: str | None
    password: str | None = attrs.field(repr=False)

    @property
    def with_user(self) -> str:
        """The URL with the user name and a stand-in for the password: the form that masking starts from."""
        if self.user is None and self.password is None:
            return self.url
        scheme, _, rest = self.url.partition("://")
        secret = "" if self.password is None else ":*"
        return f"{scheme}://{quote(self.user or '', safe='')}{secret}@{rest}"


def split_mirror_url(url: str) -> MirrorUrl:
    """Take `url` apart; raises ValueError when it cannot be parsed."""
    parts = urlsplit(url)
    _ = parts.port
    bare = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
    user = unquote(parts.username) if parts.username else None
    password = unquote(parts.password) if parts.password else None
    return MirrorUrl(bare, user, password)


def uniqueness_key(url: str) -> str:
    """What two mirrors of one project may not share: the URL without credentials, spelled in one way.

    Scheme and host in lower case, no default port, no trailing slash. `x` and `x.git` stay two repositories.
    """
    parts = urlsplit(url)
    scheme = parts.scheme.lower()
    query = f"?{parts.query}" if parts.query else ""
    return f"{scheme}://{netloc(scheme, parts.hostname or '', parts.port)}{parts.path.rstrip('/')}{query}"


def netloc(scheme: str, host: str, port: int | None) -> str:
    """A server as URLs of that scheme name it, without the dot that ends a host and without the default port."""
    host = host.removesuffix(".")
    bracketed = f"[{host}]" if ":" in host else host
    return bracketed if port in (None, DEFAULT_PORTS.get(scheme)) else f"{bracketed}:{port}"


def is_same_repository(url: str, own_url: str) -> bool:
    """Whether a mirror's `url` is the project's `own_url` (its HTTP or its SSH clone URL, scp form too).

    Credentials, `.git`, trailing slashes, letter case and http instead of https make no difference; ports do.
    """
    return _place(url) == _place(own_url)


def _place(url: str) -> tuple[str, str, int, str]:
    scp = _SCP_FORM.fullmatch(url) if "://" not in url else None
    if scp:
        return "ssh", _plain_host(scp["host"]), 22, _plain_path(scp["path"])
    parts = urlsplit(url)
    scheme = parts.scheme.lower()
    port = parts.port or DEFAULT_PORTS.get(scheme, 0)
    if scheme in ("http", "https"):
        scheme, port = "http", 80 if port == 443 else port
    return scheme, _plain_host(parts.hostname or ""), port, _plain_path(parts.path)


def _plain_host(host: str) -> str:
    return host.lower().removesuffix(".")


def _plain_path(path: str) -> str:
    segments = "/".join(segment for segment in unquote(path).split("/") if segment)
    return segments.lower().removesuffix(".git")
