"""How git reaches a remote repository: configuration, secret files and ssh, and errors without credentials.

Whoever uses a folder of secrets holds a lock on it (flock), which ends with its process, however that ends: so
leftovers can be told from what is needed.
"""

import asyncio
import base64
import fcntl
import ipaddress
import os
import re
import shlex
import shutil
import tempfile
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from pathlib import Path
from urllib.parse import SplitResult, quote, quote_plus, urlsplit

import attrs

from api_server.git.errors import GitError, GitTimeoutError, OutputTooLargeError
from api_server.git.processes import Child, start


class RemoteError(Exception):
    """Git could not do it."""


class RemoteTimeoutError(RemoteError):
    """The time limit was over; git and all that it had started were killed."""


class AuthenticationFailedError(RemoteError):
    """The target refuses the credentials, or wants some where there are none."""


class HostKeyRefusedError(RemoteError):
    """The SSH server's key is not one of the expected keys."""


#: What git and ssh say, in the C locale.
_ERROR_KINDS: tuple[tuple[re.Pattern[str], type[RemoteError]], ...] = (
    (re.compile(r"Host key verification failed|HOST IDENTIFICATION HAS CHANGED"), HostKeyRefusedError),
    (
        re.compile(
            r"Authentication failed|could not read (?:Username|Password)|Permission denied \("
            r"|requested URL returned error: 40[13]"
        ),
        AuthenticationFailedError,
    ),
)


def remote_error(failure: str, said: str) -> RemoteError:
    """Return the error for what git `said` when it failed with what the sentence `failure` names."""
    kind = next((kind for pattern, kind in _ERROR_KINDS if pattern.search(said)), RemoteError)
    return kind(f"{failure}: {said or 'git gave no reason'}")


_SECRETS_PREFIX = "forgelet-secrets-"
#: Between making a folder and holding it lies no more than that.
_SECONDS_TO_LOCK = 10


@contextmanager
def secret_folder(parent: Path | None = None) -> Iterator[Path]:
    """Yield a new folder of mode 700 below `parent` (default: the temporary folder), removed at the end."""
    folder = Path(tempfile.mkdtemp(prefix=_SECRETS_PREFIX, dir=parent))
    held = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(held)


def write_secret(path: Path, text: str, mode: int = 0o600) -> Path:
    """Return a new file that nobody else can read, not even for a moment."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w", encoding="utf-8") as file:
        file.write(text)
    return path


def remove_leftovers(parent: Path | None) -> None:
    """Remove what killed processes have left below `parent`: folders that nobody holds.

    One that is a few seconds old may be about to be held. The file system dates them, whose clock need not be the
    application's: so a new folder tells what time it is.
    """
    with secret_folder(parent) as new:
        before = new.stat().st_mtime - _SECONDS_TO_LOCK
    for folder in Path(parent or tempfile.gettempdir()).glob(f"{_SECRETS_PREFIX}*"):
        with suppress(FileNotFoundError):  # another process was done with it
            status = folder.lstat()
            if status.st_uid == os.getuid() and status.st_mtime < before and not _is_held(folder):
                shutil.rmtree(folder, ignore_errors=True)


def _is_held(folder: Path) -> bool:
    handle = os.open(folder, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False


MASK = "*****"
#: User names that name a service, not a person, and stay visible.
VISIBLE_USERS = frozenset({"git"})

_USERINFO_IN_TEXT = re.compile(r"\b((?:https?|ssh|git)://)([^\s/?#'\"<>]*)@", re.IGNORECASE)


def mask_url(url: str) -> str | None:
    """`url` with user name and password replaced by asterisks; None when it cannot be parsed."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return None
    userinfo, at, host = parts.netloc.rpartition("@")
    return parts._replace(netloc=f"{_masked(userinfo)}@{host}" if at else host).geturl()


def sanitize(text: str, *, user: str | None = None, password: str | None = None) -> str:
    """`text` without credentials: those in URLs, and this `user` and `password` wherever they appear.

    Looks for the strings themselves, their percent-encoded forms, and base64 of either and of `user:password`
    (the Basic scheme, RFC 7617). A bare `ssh://` becomes empty, as GitLab has it.
    """
    if text == "ssh://":
        return ""
    text = _USERINFO_IN_TEXT.sub(lambda match: f"{match[1]}{_masked(match[2])}@", text)
    forms = sorted(_forms(user, password), key=len, reverse=True)
    if not forms:
        return text
    return re.sub("|".join(map(re.escape, forms)), MASK, text)


def _masked(userinfo: str) -> str:
    user, colon, _password = userinfo.partition(":")
    if not colon:
        return user if user in VISIBLE_USERS else MASK
    return f"{MASK}:{MASK}"


def _forms(user: str | None, password: str | None) -> set[str]:
    secrets = [secret for secret in (user, password) if secret and secret not in VISIBLE_USERS]
    forms = {form for secret in secrets for form in _encodings(secret)}
    if password:
        forms |= _base64_forms(f"{user or ''}:{password}")
    return forms


def _encodings(secret: str) -> set[str]:
    percent_encoded = {quote(secret), quote(secret, safe=""), quote_plus(secret)}
    lower_case = {re.sub("%[0-9A-F]{2}", lambda match: match[0].lower(), form) for form in percent_encoded}
    return {secret} | percent_encoded | lower_case | _base64_forms(secret)


def _base64_forms(secret: str) -> set[str]:
    data = secret.encode()
    return {
        form
        for encoded in (base64.b64encode(data).decode(), base64.urlsafe_b64encode(data).decode())
        for form in (encoded, encoded.rstrip("="))
    }


#: Who to be where the URL names nobody.
DEFAULT_USER = "git"

_LEARNT = "learnt_hosts"
#: Values go into ssh's configuration in quotes; it knows no escapes there, and expands `%` and `$`.
_WRITABLE = re.compile(r'[^"\\%$\x00-\x20\x7f]+')

_CLOSED = """\
AddKeysToAgent no
CanonicalizeHostname no
CheckHostIP no
ClearAllForwardings yes
ConnectTimeout 30
ControlMaster no
ControlPath none
ForwardAgent no
ForwardX11 no
GSSAPIAuthentication no
GlobalKnownHostsFile /dev/null
HashKnownHosts no
HostbasedAuthentication no
IdentitiesOnly yes
IdentityAgent none
LogLevel ERROR
NumberOfPasswordPrompts 1
PermitLocalCommand no
ProxyCommand none
RequestTTY no
ServerAliveInterval 15
UpdateHostKeys no
"""


@attrs.frozen
class SshServer:
    """The server to reach: `name` as in known_hosts, the `address` to connect to (None: ask DNS), its keys.

    `host_keys` are known_hosts lines. Without any, the first key seen is trusted and kept.
    """

    name: str
    address: str | None
    host_keys: Sequence[str]


@attrs.frozen
class SshLogin:
    """Who to be there: by `private_key` (OpenSSH's format) if there is one, otherwise by `password`."""

    user: str | None
    password: str | None = attrs.field(repr=False)
    private_key: str | None = attrs.field(repr=False)


def known_hosts_name(host: str, port: int | None) -> str:
    """How known_hosts names a server: the host alone at port 22, `[host]:port` elsewhere (sshd(8))."""
    return host if port in (None, 22) else f"[{host}]:{port}"


def write_ssh_files(folder: Path, server: SshServer, login: SshLogin) -> dict[str, str]:
    """Write what ssh needs into `folder`; the result is the environment that makes git use it.

    The user name and all secrets are in files, so that no process list shows them. Raise RemoteError for a
    user name that cannot be written into an ssh configuration.
    """
    user = login.user or DEFAULT_USER
    if not _WRITABLE.fullmatch(user):
        raise RemoteError("The user name has characters that cannot be used with SSH.")
    options = {"User": user, "HostKeyAlias": server.name} | _host_key_options(folder, server.host_keys)
    if server.address:
        options["HostName"] = server.address
    environment: dict[str, str] = {}
    if login.private_key:
        options |= {
            "IdentityFile": str(write_secret(folder / "key", login.private_key)),
            "PreferredAuthentications": "publickey",
            "BatchMode": "yes",
        }
    else:
        options |= {"PubkeyAuthentication": "no", "PreferredAuthentications": "password,keyboard-interactive"}
        environment = _askpass(folder, login.password or "")
    lines = "".join(f'{name} "{value}"\n' for name, value in options.items())
    configuration = write_secret(folder / "ssh_config", lines + _CLOSED)
    return {"GIT_SSH_COMMAND": f"ssh -F {shlex.quote(str(configuration))}", **environment}


def learnt_host_keys(folder: Path) -> tuple[str, ...]:
    """Return the known_hosts lines that ssh has written; none when keys were pinned."""
    learnt = folder / _LEARNT
    return tuple(learnt.read_text().splitlines()) if learnt.exists() else ()


def _host_key_options(folder: Path, host_keys: Sequence[str]) -> dict[str, str]:
    if not host_keys:
        return {"UserKnownHostsFile": str(folder / _LEARNT), "StrictHostKeyChecking": "accept-new"}
    pinned = write_secret(folder / "known_hosts", "".join(f"{line}\n" for line in host_keys))
    return {"UserKnownHostsFile": str(pinned), "StrictHostKeyChecking": "yes"}


def _askpass(folder: Path, password: str) -> dict[str, str]:
    """ssh takes a password from a program only; this one reads a file. The folder must allow execution."""
    secret = write_secret(folder / "password", password + "\n")
    program = write_secret(folder / "askpass", f"#!/bin/sh\nexec cat {shlex.quote(str(secret))}\n", 0o700)
    return {"SSH_ASKPASS": str(program), "SSH_ASKPASS_REQUIRE": "force"}


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
        """Return the known_hosts lines of a server that had no pinned key."""
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


class RemoteGit:
    """What `git` needs to reach `remote`; `time_limit` is in seconds from now, for all that is started."""

    def __init__(self, remote: Remote, access: Access, time_limit: float) -> None:
        self.access = access
        self._remote = remote
        self._deadline = asyncio.get_running_loop().time() + time_limit

    def start(
        self, arguments: Sequence[str], *, repository: Path | None = None, with_stdin: bool = False
    ) -> AbstractAsyncContextManager[Child]:
        """Return a git child for the length of a block; it gives way to what users wait for."""
        return start(
            arguments,
            repository=repository,
            extra_environment=self.access.environment,
            configuration=self.access.configuration,
            with_stdin=with_stdin,
            time_limit=max(0.0, self._deadline - asyncio.get_running_loop().time()),
            background=True,
        )

    def clean(self, text: str) -> str:
        """Return what git or the target said, without credentials and control characters."""
        printable = "".join(character for character in text if character.isprintable() or character == "\n")
        return sanitize(printable, user=self._remote.user, password=self._remote.password).strip()

    @contextmanager
    def errors_as(self, failure: str) -> Iterator[None]:
        """Turn errors of git into `RemoteError`; its sentence begins with `failure`."""
        try:
            yield
        except GitTimeoutError as problem:
            raise RemoteTimeoutError(f"{failure}: the target took too long.") from problem
        except OutputTooLargeError as problem:
            raise RemoteError(f"{failure}: the target has too many refs.") from problem
        except GitError as problem:
            raise remote_error(failure, self.clean(problem.stderr)) from None
