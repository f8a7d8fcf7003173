"""What `forgelet up` is given: options and variables, looked at before anything begins."""

import ipaddress
import re
from pathlib import Path

import click
from click.core import ParameterSource

from forgelet.instance import Instance
from forgelet.local.processes import CannotStart

_A_NAME = re.compile(r"(?!-)[A-Za-z0-9._-]{1,253}")
_A_TOKEN = re.compile(r"[\x21-\x7e]{8,255}")


def address(text: str) -> str:
    """For `--host`. Raises `Mistake`, as all here."""
    try:
        return str(ipaddress.IPv4Address(text))
    except ValueError:
        raise CannotStart("--host has to be an IPv4 address, such as 0.0.0.0") from None


def name(text: str) -> str:
    """For `--external-host`."""
    if not _A_NAME.fullmatch(text):
        raise CannotStart(
            "--external-host has to be the name or the IPv4 address of a machine, without a port"
        )
    return text


def gitlab_version(text: str) -> str:
    """For `--gitlab-version`."""
    from api_server.settings import GITLAB_VERSION  # a start without the option does not wait for it

    if not re.fullmatch(GITLAB_VERSION, text):
        raise CannotStart("--gitlab-version has to be a version such as 17.11 or 17.11.4-ee")
    return text


def root_token(token: str | None, file: Path | None) -> str | None:
    """For `--root-token` and `--root-token-file`."""
    if file is not None:
        token = file.read_text(errors="replace").strip()
    if token is not None and not _A_TOKEN.fullmatch(token):
        given = f"What --root-token-file names ({file})" if file else "--root-token"
        raise CannotStart(f"{given} has to be 8 to 255 visible ASCII characters without spaces")
    return token


def folder_for_tests(instance: Instance, database_url: str | None) -> Path | None:
    """The empty one of `--data-dir`, for a server for tests. The variable names the folder of another service."""
    if database_url:
        raise CannotStart("--testing has a PostgreSQL of its own, to throw away: leave out --database-url")
    named = instance.named if _is_data_dir_given() else None
    if named is not None and named.exists() and (not named.is_dir() or any(named.iterdir())):
        raise CannotStart(
            f"--testing begins with nothing, and there is something in {named}: name an empty folder or none"
        )
    return named


def _is_data_dir_given() -> bool:
    """Before or after the command's name."""
    context: click.Context | None = click.get_current_context()
    while context is not None:
        if context.get_parameter_source("data_dir") is ParameterSource.COMMANDLINE:
            return True
        context = context.parent
    return False
