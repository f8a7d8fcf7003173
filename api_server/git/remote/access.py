"""How git reaches a remote repository: configuration, environment and secret files for each scheme."""

import ipaddress
import shlex
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

import attrs

from api_server.git.remote.secret_files import secret_folder, write_secret
from api_server.git.remote.ssh_client import (
    SshLogin,
    SshServer,
    known_hosts_name,
    learnt_host_keys,
    write_ssh_files,
)

#: Of the schemes whose programs take one address; curl takes them all.
DEFAULT_PORTS = {"ssh": 22, "git": 9418}
#: A target that neither takes nor gives a byte for this long has gone; git's servers speak every 5 s at work.
SILENCE_SECONDS = 300


@attrs.frozen
class Remote:
    """A remote repository and all that it takes to reach it.

    `url` is `http`, `https`, `ssh` or `git`, has been checked, and carries no user name and no password.
    `private_key` is in OpenSSH's format. `host_keys` are known_hosts lines; without any, the first key seen
    is trusted and reported. `addresses` are the host's checked addresses: git connects to no other.
    """

    url: str
    user: str | None = None
    password: str | None = attrs.field(default=None, repr=False)
    private_key: str | None = attrs.field(default=None, repr=False)
    host_keys: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()


@attrs.frozen
class Access:
    """What a git child has to be given; `folder` holds the secrets and vanishes when the access ends."""

    url: str
    configuration: Sequence[tuple[str, str]]
    environment: Mapping[str, str]
    folder: Path

    def learnt_host_keys(self) -> tuple[str, ...]:
        """The known_hosts lines of a server that had no pinned key."""
        return learnt_host_keys(self.folder)


@contextmanager
def prepare_access(remote: Remote, parent: Path | None = None) -> Iterator[Access]:
    """Write the files that git needs into a secret folder below `parent`."""
    with secret_folder(parent) as folder:
        parts = urlsplit(remote.url)
        url, configuration, environment = _BY_SCHEME[parts.scheme](remote, parts, folder)
        allowed = (f"protocol.{parts.scheme}.allow", "always")
        no_prompts = {"GIT_ASKPASS": ""}
        yield Access(url, (allowed, *configuration), no_prompts | environment, folder)


_Prepared = tuple[str, Sequence[tuple[str, str]], dict[str, str]]


def _http(remote: Remote, parts: SplitResult, folder: Path) -> _Prepared:
    """No redirects, no proxy; curl is told the addresses.

    Credentials are sent with the first request (RFC 7617 2.2), by a header in an included file: asking first
    would cost a request for each connection. Git also gets them from a credential helper, so that a refusal is
    told as one and not as a missing password; unlike git's own `store` it forgets nothing that was refused, as
    another git may be asking at the same time.
    """
    configuration = [
        ("http.followRedirects", "false"),
        ("http.proxy", ""),
        ("http.lowSpeedLimit", "1"),  # bytes a second
        ("http.lowSpeedTime", str(SILENCE_SECONDS)),
    ]
    user, password = remote.user or "", remote.password or ""
    if user or password:
        answer = write_secret(folder / "credentials", f"username={user}\npassword={password}\n")
        helper = f'!f() {{ test "$1" = get && cat {shlex.quote(str(answer))}; }}; f'
        configuration.append(("credential.helper", helper))
        basic = b64encode(f"{user}:{password}".encode()).decode()
        header = f'[http]\n\textraHeader = "Authorization: Basic {basic}"\n'
        configuration.append(("include.path", str(write_secret(folder / "header", header))))
    if remote.addresses:
        port = parts.port or (443 if parts.scheme == "https" else 80)
        addresses = ",".join(map(_bracketed, remote.addresses))
        configuration.append(("http.curloptResolve", f"{parts.hostname}:{port}:{addresses}"))
    return remote.url, configuration, {}


def _ssh(remote: Remote, parts: SplitResult, folder: Path) -> _Prepared:
    server = SshServer(
        name=known_hosts_name(parts.hostname or "", parts.port),
        address=remote.addresses[0] if remote.addresses else None,
        host_keys=remote.host_keys,
    )
    login = SshLogin(remote.user, remote.password, remote.private_key)
    return remote.url, [("ssh.variant", "ssh")], write_ssh_files(folder, server, login)


def _git(remote: Remote, parts: SplitResult, _folder: Path) -> _Prepared:
    """There are no credentials; the address stands in the URL, the name is sent as the virtual host."""
    if not remote.addresses:
        return remote.url, [], {}
    netloc = f"{_bracketed(remote.addresses[0])}:{parts.port or DEFAULT_PORTS['git']}"
    return parts._replace(netloc=netloc).geturl(), [], {"GIT_OVERRIDE_VIRTUAL_HOST": parts.netloc}


_BY_SCHEME: Mapping[str, Callable[[Remote, SplitResult, Path], _Prepared]] = {
    "http": _http,
    "https": _http,
    "ssh": _ssh,
    "git": _git,
}


def _bracketed(address: str) -> str:
    return f"[{address}]" if ipaddress.ip_address(address).version == 6 else address
