"""What a maintainer sets of a mirror, as a value: how wishes change it, and what is wrong with a wish."""

from collections.abc import Sequence
from typing import Any, Literal
from urllib.parse import urlsplit

import attrs
import orjson

from api_server.git.remote.access import mask_url
from api_server.git.remote.ssh_keys import HostKey, make_key_pair, parse_host_keys
from api_server.mirrors.plan import branches_matching
from api_server.mirrors.urls import MirrorUrl, split_mirror_url, uniqueness_key
from api_server.state.secrets import Vault
from api_server.web.params import UNSET, Description, Name, Unset, Url

AuthMethod = Literal["password", "ssh_public_key"]


@attrs.frozen(kw_only=True)
class Configuration:
    """The columns that are set by callers. `credentials` and `private_key` are sealed by the vault; `host_keys` is the
    JSON of the pinned ones."""

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
        """As SQL parameters."""
        return {field.name: getattr(self, field.name) for field in attrs.fields(Configuration)}

    @property
    def pinned_keys(self) -> tuple[HostKey, ...]:
        return tuple(HostKey(**key) for key in orjson.loads(self.host_keys))


@attrs.frozen(kw_only=True)
class Wishes:
    """What a request asks for; `UNSET` leaves a thing as it is."""

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
        """What is wrong with them whatever the mirror, by field, in GitLab's words."""
        found = {}
        if self.only_protected_branches is None:
            found["only_protected_branches"] = ["can't be blank"]
        if self.auth_method not in (UNSET, "password", "ssh_public_key"):
            found["auth_method"] = ["is not included in the list"]
        if self.sets_a_regex:
            try:
                branches_matching(str(self.mirror_branch_regex))
            except ValueError as problem:
                found["mirror_branch_regex"] = [str(problem)]
        return found


def fulfilled(before: Configuration, wishes: Wishes, vault: Vault, own_host: str) -> Configuration:
    """`before` with the wishes, which have no problems, come true; `own_host` ends a new public key.

    Choosing branches by a regex and choosing protected ones exclude each other: the wish of now wins. A URL that
    is the shown one, with its asterisks, keeps the credentials. Host keys go when the server changes.
    Raises InvalidHostKeysError.
    """
    after = attrs.evolve(before, **_plain(wishes))
    if wishes.sets_a_regex:
        after = attrs.evolve(after, only_protected_branches=False)
    elif wishes.only_protected_branches is True:
        after = attrs.evolve(after, mirror_branch_regex=None)
    if not isinstance(wishes.url, Unset) and wishes.url != before.shown_url:
        after = _aimed(after, split_mirror_url(wishes.url), vault)
    if not isinstance(wishes.host_keys, Unset):
        parts = urlsplit(after.url)
        keys = parse_host_keys(wishes.host_keys, parts.hostname or "", parts.port)
        after = attrs.evolve(after, host_keys=host_keys_column(keys))
    return _with_key_pair(after, vault, own_host)


def differences(before: Configuration, after: Configuration) -> dict[str, tuple[str, str]]:
    """What differs, by field, as people may read it; credentials and keys are said to differ, not shown."""
    found = {
        name: (_said(getattr(before, name)), _said(getattr(after, name)))
        for name in ("url", *_PLAIN)
        if getattr(before, name) != getattr(after, name)
    }
    if before.pinned_keys != after.pinned_keys:
        found["host_keys"] = _fingerprints(before.pinned_keys), _fingerprints(after.pinned_keys)
    if before.credentials != after.credentials:
        found["credentials"] = "", ""
    return found


def is_retargeted(before: Configuration, after: Configuration) -> bool:
    """Whether the next run goes somewhere else, or as somebody else."""
    return (before.url, before.credentials, before.auth_method) != (
        after.url,
        after.credentials,
        after.auth_method,
    )


def seal_credentials(vault: Vault, url: MirrorUrl) -> bytes | None:
    """User name and password as they are stored."""
    if url.user is None and url.password is None:
        return None
    return vault.encrypt(orjson.dumps([url.user, url.password]).decode())


def open_credentials(vault: Vault, sealed: bytes | None) -> tuple[str | None, str | None]:
    """User name and password."""
    if sealed is None:
        return None, None
    user, password = orjson.loads(vault.decrypt(sealed))
    return user, password


def host_keys_column(keys: Sequence[HostKey]) -> str:
    """Keys as they are stored."""
    return orjson.dumps([attrs.asdict(key) for key in keys]).decode()


#: Wishes that are columns as they are.
_PLAIN = ("enabled", "only_protected_branches", "keep_divergent_refs", "mirror_branch_regex", "auth_method")


def _plain(wishes: Wishes) -> dict[str, Any]:
    wanted = {name: getattr(wishes, name) for name in _PLAIN if getattr(wishes, name) is not UNSET}
    return wanted | ({"mirror_branch_regex": None} if wanted.get("mirror_branch_regex") == "" else {})


def _aimed(before: Configuration, target: MirrorUrl, vault: Vault) -> Configuration:
    same_server = _server(before.url) == _server(target.url)
    return attrs.evolve(
        before,
        url=target.url,
        shown_url=mask_url(target.with_user) or "",
        uniqueness_key=uniqueness_key(target.url),
        credentials=seal_credentials(vault, target),
        host_keys=before.host_keys if same_server else host_keys_column(()),
    )


def _server(url: str) -> tuple[str | None, int | None]:
    parts = urlsplit(url)
    return parts.hostname, parts.port


def _with_key_pair(before: Configuration, vault: Vault, own_host: str) -> Configuration:
    """The pair is made when it is first needed, and stays."""
    needed = before.auth_method == "ssh_public_key" and urlsplit(before.url).scheme.lower() == "ssh"
    if not needed or before.private_key is not None:
        return before
    pair = make_key_pair(f"git@{own_host}")
    return attrs.evolve(before, private_key=vault.encrypt(pair.private), public_key=pair.public)


def _said(value: object) -> str:
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _fingerprints(keys: Sequence[HostKey]) -> str:
    return ", ".join(key.fingerprint_sha256 for key in keys)
