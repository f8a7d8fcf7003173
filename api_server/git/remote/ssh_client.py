"""The configuration file, keys and askpass program with which one ssh client of ours runs."""

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

import attrs

from api_server.git.remote.errors import RemoteError
from api_server.git.remote.secret_files import write_secret

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

    The user name and all secrets are in files, so that no process list shows them. Raises RemoteError for a
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
    """The known_hosts lines that ssh has written; none when keys were pinned."""
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
