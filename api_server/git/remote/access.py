"""Access of git to a remote repository: configuration, files with secrets, ssh, and errors without credentials.

A process that uses a folder of secrets holds a lock on it (flock), which ends with the process, for whatever reason.
Leftovers can therefore be distinguished from folders in use.
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
    """git failed to do what was asked at a remote repository."""


class RemoteTimeoutError(RemoteError):
    """The time limit was reached, and git was killed with all that it had started."""


class AuthenticationFailedError(RemoteError):
    """The target refuses the credentials, or requires some and got none."""


class HostKeyRefusedError(RemoteError):
    """The SSH server's key is not one of the expected keys."""


#: What git and ssh print in the C locale, with the error that it means.
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


def remote_error(failure: str, output: str) -> RemoteError:
    """Return the error for a git that printed `output` when it failed. Its sentence begins with `failure`."""
    kind = next((kind for pattern, kind in _ERROR_KINDS if pattern.search(output)), RemoteError)
    return kind(f"{failure}: {output or 'git gave no reason'}")


_SECRETS_PREFIX = "forgelet-secrets-"
#: Maximum number of seconds between creating a folder and locking it.
_SECONDS_TO_LOCK = 10


@contextmanager
def secret_folder(parent: Path | None = None) -> Iterator[Path]:
    """Yield a new folder of mode 700 below `parent` (default: the temporary folder). It is removed at the end of the
    block."""
    folder = Path(tempfile.mkdtemp(prefix=_SECRETS_PREFIX, dir=parent))
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)


def write_secret(path: Path, text: str, mode: int = 0o600) -> Path:
    """Create a file that nobody else can read, not even for a moment, and return its path."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w", encoding="utf-8") as file:
        file.write(text)
    return path


def remove_leftovers(parent: Path | None) -> None:
    """Remove what killed processes have left below `parent`: folders that nobody has locked.

    A folder that is a few seconds old may be about to be locked. The dates of folders are the file system's, whose
    clock may differ from ours: a new folder shows what its time is.
    """
    with secret_folder(parent) as new:
        before = new.stat().st_mtime - _SECONDS_TO_LOCK
    for folder in Path(parent or tempfile.gettempdir()).glob(f"{_SECRETS_PREFIX}*"):
        with suppress(FileNotFoundError):  # another process has removed it
            status = folder.lstat()
            if status.st_uid == os.getuid() and status.st_mtime < before and not _is_locked(folder):
                shutil.rmtree(folder, ignore_errors=True)


def _is_locked(folder: Path) -> bool:
    handle = os.open(folder, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False


MASK = "*****"
#: Names of users that stand for a service and not for a person. They stay visible.
VISIBLE_USERS = frozenset({"git"})

_SHORTEST_TOKEN = 8

_USERINFO_IN_TEXT = re.compile(r"\b((?:https?|ssh|git)://)([^\s/?#'\"<>]*)@", re.IGNORECASE)


def mask_url(url: str) -> str | None:
    """Return `url` with asterisks instead of user name and password, or None if it cannot be parsed."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return None
    userinfo, separator, host = parts.netloc.rpartition("@")
    return parts._replace(netloc=f"{_masked(userinfo)}@{host}" if separator else host).geturl()


def sanitize(text: str, *, user: str | None = None, password: str | None = None) -> str:
    """Return `text` without credentials: those in URLs, and this `user` and `password` wherever they appear. A short
    user name is no token; it is replaced only as a word, because it may be a part of others ("ann" of "cannot").

    This replaces the strings themselves, their percent-encoded forms, and base64 of either and of `user:password` (the
    Basic scheme, RFC 7617). A bare `ssh://` becomes empty, as in GitLab.
    """
    if text == "ssh://":
        return ""
    text = _USERINFO_IN_TEXT.sub(lambda match: f"{match[1]}{_masked(match[2])}@", text)
    forms = sorted(_forms(user, password), key=len, reverse=True)
    if not forms:
        return text
    patterns = [
        rf"(?<!\w){re.escape(form)}(?!\w)"
        if form == user and len(form) < _SHORTEST_TOKEN
        else re.escape(form)
        for form in forms
    ]
    return re.sub("|".join(patterns), MASK, text)


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


#: The user name if the URL has none.
DEFAULT_USER = "git"

_LEARNT = "learnt_hosts"
#: Values that can be written into ssh's configuration in quotes. There are no escapes there, and ssh expands `%` and
#: `$`.
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
    """The server to reach: its `name` as in known_hosts, the `address` to connect to (None: ask DNS), and its keys.

    `host_keys` are known_hosts lines. If there are none, the first key that the server shows is trusted and kept.
    """

    name: str
    address: str | None
    host_keys: Sequence[str]


@attrs.frozen
class SshLogin:
    """The credentials for a server: `private_key` (in OpenSSH's format) if there is one, otherwise `password`."""

    user: str | None
    password: str | None = attrs.field(repr=False)
    private_key: str | None = attrs.field(repr=False)


def known_hosts_name(host: str, port: int | None) -> str:
    """Return the server's name in known_hosts: the host alone for port 22, otherwise `[host]:port` (sshd(8))."""
    return host if port in (None, 22) else f"[{host}]:{port}"


def write_ssh_files(folder: Path, server: SshServer, login: SshLogin) -> dict[str, str]:
    """Write ssh's files into `folder`. Return the environment variables that make git use them.

    The user name and all secrets are in files, so that no list of processes shows them. Raise `RemoteError` for a user
    name that cannot be written into ssh's configuration.
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
    """Return the known_hosts lines that ssh has written, or none if keys were pinned."""
    learnt = folder / _LEARNT
    return tuple(learnt.read_text().splitlines()) if learnt.exists() else ()


def _host_key_options(folder: Path, host_keys: Sequence[str]) -> dict[str, str]:
    if not host_keys:
        return {"UserKnownHostsFile": str(folder / _LEARNT), "StrictHostKeyChecking": "accept-new"}
    pinned = write_secret(folder / "known_hosts", "".join(f"{line}\n" for line in host_keys))
    return {"UserKnownHostsFile": str(pinned), "StrictHostKeyChecking": "yes"}


def _askpass(folder: Path, password: str) -> dict[str, str]:
    """Return the environment variables for a program that prints the password, which ssh reads in no other way. The
    folder must allow execution."""
    secret = write_secret(folder / "password", password + "\n")
    program = write_secret(folder / "askpass", f"#!/bin/sh\nexec cat {shlex.quote(str(secret))}\n", 0o700)
    return {"SSH_ASKPASS": str(program), "SSH_ASKPASS_REQUIRE": "force"}


#: Default ports of the schemes whose programs accept one address only. curl accepts several.
DEFAULT_PORTS = {"ssh": 22, "git": 9418}
#: Seconds without a byte in either direction after which a target counts as gone. While git's servers work, they send
#: something every 5 seconds.
SILENCE_SECONDS = 300


@attrs.frozen
class Remote:
    """A remote repository and all that is needed to reach it.

    `url` is `http`, `https`, `ssh` or `git`, has been checked, and contains no user name and no password.
    `private_key` is in OpenSSH's format. `host_keys` are known_hosts lines; if there are none, the first key that the
    server shows is trusted and reported. `addresses` are the host's checked addresses: git connects to no other.
    """

    url: str
    user: str | None = None
    password: str | None = attrs.field(default=None, repr=False)
    private_key: str | None = attrs.field(default=None, repr=False)
    host_keys: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()


@attrs.frozen
class Access:
    """The URL, configuration and environment of a git child. `folder` contains the secrets and is removed when the
    access ends."""

    url: str
    configuration: Sequence[tuple[str, str]]
    environment: Mapping[str, str]
    folder: Path

    def learnt_host_keys(self) -> tuple[str, ...]:
        """Return the known_hosts lines of a server that had no pinned key, otherwise none."""
        return learnt_host_keys(self.folder)


@contextmanager
def prepare_access(remote: Remote, parent: Path | None = None) -> Iterator[Access]:
    """Write the files that git needs into a secret folder below `parent`, and yield the access for the duration of the
    block."""
    with secret_folder(parent) as folder:
        parts = urlsplit(remote.url)
        url, configuration, environment = _BY_SCHEME[parts.scheme](remote, parts, folder)
        allowed = (f"protocol.{parts.scheme}.allow", "always")
        no_prompts = {"GIT_ASKPASS": ""}
        yield Access(url, (allowed, *configuration), no_prompts | environment, folder)


_Prepared = tuple[str, Sequence[tuple[str, str]], dict[str, str]]


def _http(remote: Remote, parts: SplitResult, folder: Path) -> _Prepared:
    """Prepare access over HTTP: without redirects and without a proxy. curl gets the addresses.

    Credentials are sent with the first request (RFC 7617 section 2.2), by a header in an included file: waiting for a
    challenge would cost a request for each connection. git also gets them from a credential helper, so that a refusal
    is reported as one and not as a missing password. Unlike git's own `store`, this helper does not erase credentials
    that were refused, because another git may be asking for them at the same time.
    """
    configuration = [
        ("http.followRedirects", "false"),
        ("http.proxy", ""),
        ("http.lowSpeedLimit", "1"),  # bytes per second
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
    """Prepare access over git://, which has no credentials. The URL gets the address, and the name is sent as the
    virtual host."""
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
    """A starter of git children with access to `remote`. `time_limit` is in seconds from now, for all of them
    together."""

    def __init__(self, remote: Remote, access: Access, time_limit: float) -> None:
        self.access = access
        self._remote = remote
        self._deadline = asyncio.get_running_loop().time() + time_limit

    def start(
        self, arguments: Sequence[str], *, repository: Path | None = None, with_stdin: bool = False
    ) -> AbstractAsyncContextManager[Child]:
        """Return a git child for the duration of a block. It has a lower priority than what users wait for."""
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
        """Return what git or the target has printed, without credentials and control characters."""
        printable = "".join(character for character in text if character.isprintable() or character == "\n")
        return sanitize(printable, user=self._remote.user, password=self._remote.password).strip()

    @contextmanager
    def errors_as(self, failure: str) -> Iterator[None]:
        """Convert errors of git in the block to `RemoteError`, with a sentence that begins with `failure`."""
        try:
            yield
        except GitTimeoutError as problem:
            raise RemoteTimeoutError(f"{failure}: the target took too long.") from problem
        except OutputTooLargeError as problem:
            raise RemoteError(f"{failure}: the target has too many refs.") from problem
        except GitError as problem:
            raise remote_error(failure, self.clean(problem.stderr)) from None
