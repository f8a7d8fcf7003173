"""A mirror's configuration (URL, credentials, branches) as a value, its validation, and updates of it."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal
from urllib.parse import quote, unquote, urlsplit

import attrs
import orjson
import re2

from api_server.expressions import compile_expression
from api_server.git.remote.access import mask_url
from api_server.git.remote.ssh_keys import HostKey, make_key_pair, parse_host_keys
from api_server.outbound.destinations import DEFAULT_PORTS
from api_server.state.secrets import Vault
from api_server.web.params import UNSET, Description, Name, Unset, Url

_SCP_FORM = re.compile(r"(?:[^@/\s]+@)?(?P<host>[^:/\s]+):(?!//)(?P<path>.+)")


@attrs.frozen
class MirrorUrl:
    """A mirror's target: the `url` without credentials, and its percent-decoded credentials."""

    url: str
    user: str | None
    password: str | None = attrs.field(repr=False)

    @property
    def with_user(self) -> str:
        """The URL with the user name and a placeholder for the password, as input of `mask_url`."""
        if self.user is None and self.password is None:
            return self.url
        scheme, _, rest = self.url.partition("://")
        secret = "" if self.password is None else ":*"
        return f"{scheme}://{quote(self.user or '', safe='')}{secret}@{rest}"


def split_mirror_url(url: str) -> MirrorUrl:
    """Separate the credentials from `url`. Raise ValueError if it cannot be parsed."""
    parts = urlsplit(url)
    _ = parts.port
    bare = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
    user = unquote(parts.username) if parts.username else None
    password = unquote(parts.password) if parts.password else None
    return MirrorUrl(bare, user, password)


def uniqueness_key(url: str) -> str:
    """Return the normalised URL without credentials. Two mirrors of one project must not share it.

    Scheme and host become lower case; the default port and trailing slashes are removed. `x` and `x.git` remain
    different repositories.
    """
    parts = urlsplit(url)
    scheme = parts.scheme.lower()
    query = f"?{parts.query}" if parts.query else ""
    return f"{scheme}://{netloc(scheme, parts.hostname or '', parts.port)}{parts.path.rstrip('/')}{query}"


def netloc(scheme: str, host: str, port: int | None) -> str:
    """Return the server's part of a URL, without a dot at the end of the host and without the scheme's default
    port."""
    host = host.removesuffix(".")
    bracketed = f"[{host}]" if ":" in host else host
    return bracketed if port in (None, DEFAULT_PORTS.get(scheme)) else f"{bracketed}:{port}"


def is_same_repository(url: str, own_url: str) -> bool:
    """Return whether a mirror's `url` names the same repository as the project's `own_url`; both may have scp form.

    Differences in credentials, `.git`, trailing slashes, letter case, and http or https are ignored; ports count.
    """
    return _address(url) == _address(own_url)


def _address(url: str) -> tuple[str, str, int, str]:
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


AuthMethod = Literal["password", "ssh_public_key"]


@attrs.frozen(kw_only=True)
class Configuration:
    """The columns that callers can set. `credentials` and `private_key` are encrypted by the vault; `host_keys` is the
    JSON of the pinned host keys."""

    url: str = ""
    shown_url: str = ""
    uniqueness_key: str = ""
    credentials: bytes | None = attrs.field(default=None, repr=False)
    enabled: bool = False
    only_protected_branches: bool = False
    keep_divergent_refs: bool = False
    mirror_branch_regex: str | None = None
    auth_method: str = "password"
    host_keys: str = "[]"
    private_key: bytes | None = attrs.field(default=None, repr=False)
    public_key: str | None = None

    @property
    def columns(self) -> dict[str, Any]:
        """The attributes as SQL parameters."""
        return {field.name: getattr(self, field.name) for field in attrs.fields(Configuration)}

    @property
    def pinned_keys(self) -> tuple[HostKey, ...]:
        return tuple(HostKey(**key) for key in orjson.loads(self.host_keys))


@attrs.frozen(kw_only=True)
class MirrorUpdate:
    """The requested values; `UNSET` keeps the present value."""

    url: Url | Unset = UNSET
    enabled: bool | Unset = UNSET
    only_protected_branches: bool | Unset | None = UNSET
    keep_divergent_refs: bool | Unset = UNSET
    mirror_branch_regex: Name | Unset | None = UNSET
    auth_method: str | Unset = attrs.field(default=UNSET, metadata={"takes": AuthMethod | Unset})
    host_keys: list[Description] | Unset = UNSET

    def __attrs_post_init__(self) -> None:
        if self.sets_a_regex and self.only_protected_branches is True:
            raise ValueError("only_protected_branches, mirror_branch_regex are mutually exclusive")

    @property
    def sets_a_regex(self) -> bool:
        return self.mirror_branch_regex not in (UNSET, None, "")

    def problems(self) -> dict[str, list[str]]:
        """Return the problems that these values have in themselves, by field, in GitLab's words."""
        problems = {}
        if self.only_protected_branches is None:
            problems["only_protected_branches"] = ["can't be blank"]
        if self.auth_method not in (UNSET, "password", "ssh_public_key"):
            problems["auth_method"] = ["is not included in the list"]
        if self.sets_a_regex:
            try:
                branches_matching(str(self.mirror_branch_regex))
            except ValueError as problem:
                problems["mirror_branch_regex"] = [str(problem)]
        return problems


def apply_update(
    before: Configuration, requested: MirrorUpdate, vault: Vault, own_host: str
) -> Configuration:
    """Return `before` with the requested values, which have been checked. Raise InvalidHostKeysError.

    A mirror selects branches by a regex or selects the protected ones, not both: the newer choice replaces the
    other. The masked URL keeps the stored credentials. Host keys are removed if the server changes. `own_host` is
    the comment of a new public key.
    """
    after = attrs.evolve(before, **_plain(requested))
    if requested.sets_a_regex:
        after = attrs.evolve(after, only_protected_branches=False)
    elif requested.only_protected_branches is True:
        after = attrs.evolve(after, mirror_branch_regex=None)
    if not isinstance(requested.url, Unset) and requested.url != before.shown_url:
        after = _aimed(after, split_mirror_url(requested.url), vault)
    if not isinstance(requested.host_keys, Unset):
        parts = urlsplit(after.url)
        keys = parse_host_keys(requested.host_keys, parts.hostname or "", parts.port)
        after = attrs.evolve(after, host_keys=host_keys_column(keys))
    return _with_key_pair(after, vault, own_host)


def differences(before: Configuration, after: Configuration) -> dict[str, tuple[str, str]]:
    """Return the changed fields as readable texts (before, after). Changed credentials are two empty texts."""
    changes = {
        name: (_text_of(getattr(before, name)), _text_of(getattr(after, name)))
        for name in ("url", *_PLAIN)
        if getattr(before, name) != getattr(after, name)
    }
    if before.pinned_keys != after.pinned_keys:
        changes["host_keys"] = _fingerprints(before.pinned_keys), _fingerprints(after.pinned_keys)
    if before.credentials != after.credentials:
        changes["credentials"] = "", ""
    return changes


def is_retargeted(before: Configuration, after: Configuration) -> bool:
    """Return whether the next run uses another URL, other credentials or another way to log in."""
    return (before.url, before.credentials, before.auth_method) != (
        after.url,
        after.credentials,
        after.auth_method,
    )


def seal_credentials(vault: Vault, url: MirrorUrl) -> bytes | None:
    """Return the URL's user name and password, encrypted for storage, or None if it has neither."""
    if url.user is None and url.password is None:
        return None
    return vault.encrypt(orjson.dumps([url.user, url.password]).decode())


def open_credentials(vault: Vault, sealed: bytes | None) -> tuple[str | None, str | None]:
    """Return the user name and the password, each None if it is not stored."""
    if sealed is None:
        return None, None
    user, password = orjson.loads(vault.decrypt(sealed))
    return user, password


def host_keys_column(keys: Sequence[HostKey]) -> str:
    """Return the JSON that is stored for the keys."""
    return orjson.dumps([attrs.asdict(key) for key in keys]).decode()


#: The fields of `MirrorUpdate` that are stored unchanged.
_PLAIN = ("enabled", "only_protected_branches", "keep_divergent_refs", "mirror_branch_regex", "auth_method")


def _plain(requested: MirrorUpdate) -> dict[str, Any]:
    values = {name: getattr(requested, name) for name in _PLAIN if getattr(requested, name) is not UNSET}
    return values | ({"mirror_branch_regex": None} if values.get("mirror_branch_regex") == "" else {})


def _aimed(before: Configuration, target: MirrorUrl, vault: Vault) -> Configuration:
    same_server = _server(before.url) == _server(target.url)
    same_login = open_credentials(vault, before.credentials) == (target.user, target.password)
    return attrs.evolve(
        before,
        url=target.url,
        shown_url=mask_url(target.with_user) or "",
        uniqueness_key=uniqueness_key(target.url),
        credentials=before.credentials if same_login else seal_credentials(vault, target),
        host_keys=before.host_keys if same_server else host_keys_column(()),
    )


def _server(url: str) -> tuple[str | None, int | None]:
    parts = urlsplit(url)
    return parts.hostname, parts.port


def _with_key_pair(before: Configuration, vault: Vault, own_host: str) -> Configuration:
    """Add a key pair if the mirror logs in by key and has none yet. It is never replaced."""
    needed = before.auth_method == "ssh_public_key" and urlsplit(before.url).scheme.lower() == "ssh"
    if not needed or before.private_key is not None:
        return before
    pair = make_key_pair(f"git@{own_host}")
    return attrs.evolve(before, private_key=vault.encrypt(pair.private), public_key=pair.public)


def _text_of(value: object) -> str:
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _fingerprints(keys: Sequence[HostKey]) -> str:
    return ", ".join(key.fingerprint_sha256 for key in keys)


#: Maximum total length, in characters, of the wildcard patterns that are joined into one expression.
_COMPARED_TOGETHER = 300


#: A function that returns whether the branch with that short name is mirrored.
BranchSelector = Callable[[str], bool]


def all_branches(_name: str) -> bool:
    """Select every branch."""
    return True


def protected_branches(patterns: Iterable[str]) -> BranchSelector:
    """Return a selector of the branches that match one of the protected names, where `*` stands for any text.

    Without a pattern it selects no branch (GitLab would push all).
    """
    rules = set(patterns)
    wildcards = [_wildcards(group) for group in _groups(sorted(rule for rule in rules if "*" in rule))]
    return lambda name: name in rules or any(selects(name) for selects in wildcards)


def _groups(patterns: Iterable[str]) -> Iterator[list[str]]:
    """Yield the patterns in groups, each small enough for one expression."""
    group: list[str] = []
    for pattern in patterns:
        if group and sum(map(len, group)) + len(pattern) > _COMPARED_TOGETHER:
            yield group
            group = []
        group.append(pattern)
    if group:
        yield group


def _wildcards(patterns: Iterable[str]) -> BranchSelector:
    return branches_matching("|".join(".*".join(map(re2.escape, pattern.split("*"))) for pattern in patterns))


def branches_matching(expression: str) -> BranchSelector:
    """Return a selector of the branches whose whole name matches the RE2 expression. Raise ValueError if it is not
    valid."""
    try:
        compiled = compile_expression(expression)
    except ValueError as problem:
        raise ValueError(f"is not a valid RE2 expression: {problem}") from problem
    # Git's names are bytes; bytes that are not UTF-8 are kept, and `.` does not match them.
    return lambda name: compiled.fullmatch(name.encode(errors="surrogateescape")) is not None
