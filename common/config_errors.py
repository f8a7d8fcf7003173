"""Errors that an operator has to correct before a program can work: one sentence on standard error and exit status
2."""

import contextlib
import errno
import importlib.util
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from shlex import quote
from typing import Any
from urllib.parse import unquote, urlsplit

import click

#: The command in a checkout, if this is one.
_SCRIPT = Path(__file__).resolve().parents[1] / "scripts/forgelet"


def own_command(folder: Path | None = None) -> str:
    """Return the command that calls this `forgelet` in a shell in the present folder, for the service in `folder`."""
    installed = Path(sys.executable).with_name("forgelet")
    on_path = shutil.which("forgelet")
    if _SCRIPT.exists():
        here = Path.cwd()
        command = quote(str(_SCRIPT.relative_to(here) if _SCRIPT.is_relative_to(here) else _SCRIPT))
    elif on_path and Path(on_path).resolve() == installed.resolve():
        command = "forgelet"
    else:
        command = quote(str(installed))
    return command if folder is None else f"{command} --data-dir {quote(str(folder))}"


def as_typed(text: str, folder: Path | None = None) -> str:
    """Return `text` with every command that it names (`forgelet ...`) as it has to be typed in the present folder."""
    return text.replace("`forgelet ", f"`{own_command(folder)} ") if "`forgelet " in text else text


class ConfigError(click.ClickException):
    """One sentence that says what is wrong and what to do. Quoted text is put on one line, and secrets are removed
    from it."""

    exit_code = 2

    def __init__(self, sentence: str) -> None:
        from common.logs import redact  # imported here, because most programs end without an error

        super().__init__(redact(" ".join(sentence.split())).rstrip("."))
        #: The folder of the service for which the commands in the sentence are, if it has to be named.
        self.folder: Path | None = None

    def format_message(self) -> str:
        """Return the sentence, with commands as they have to be typed here."""
        return as_typed(self.message, self.folder)


class _OneSentence(click.Command):
    def main(self, *arguments: Any, **options: Any) -> Any:
        """Run the command and end the program. Errors are one line, without the usage text."""
        try:
            status = super().main(*arguments, **(options | {"standalone_mode": False}))
        except click.exceptions.NoArgsIsHelpError as help_request:
            help_request.show()
            sys.exit(help_request.exit_code)
        except click.UsageError as problem:
            ConfigError(problem.format_message()).show()
            sys.exit(ConfigError.exit_code)
        except click.ClickException as problem:
            problem.show()
            sys.exit(problem.exit_code)
        except click.Abort:
            sys.exit("Aborted.")
        sys.exit(status if isinstance(status, int) else 0)


class Command(_OneSentence):
    """A program with options."""


class Group(_OneSentence, click.Group):
    """A program with commands."""


@contextlib.contextmanager
def writable(title: str) -> Iterator[None]:
    """Raise `ConfigError` if a file cannot be opened in the block."""
    try:
        yield
    except OSError as problem:
        suffix = f": {problem.filename}" if problem.filename else ""
        raise ConfigError(f"{title} cannot be written: {problem.strerror}{suffix}") from None


@contextlib.contextmanager
def binding(host: str, port: int) -> Iterator[None]:
    """Raise `ConfigError` if the block cannot listen on the address."""
    try:
        yield
    except OSError as problem:
        reason = problem.strerror if (problem.errno or 0) <= 0 else os.strerror(problem.errno or 0)
        raise ConfigError(f"Cannot listen on {host}:{port}: {reason}") from None


def first_line(problem: BaseException) -> str:
    """Return the first line of an error's text."""
    return str(problem).strip().partition("\n")[0]


def usable_folder(label: str, folder: Path) -> None:
    """Create `folder` with mode 700 if it is missing. Raise `ConfigError` if it cannot be written. A full disk is no
    such error, because it may pass."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with contextlib.closing(tempfile.TemporaryFile(dir=folder)):
            pass
    except OSError as problem:
        if problem.errno not in {errno.ENOSPC, errno.EDQUOT}:
            raise ConfigError(
                f"{label} cannot be written: {os.strerror(problem.errno or 0)}: {folder}"
            ) from None


def readable_folder(label: str, folder: Path) -> None:
    """Raise `ConfigError` if the content of `folder` cannot be read."""
    try:
        os.scandir(folder).close()
    except OSError as problem:
        raise ConfigError(f"{label} cannot be read: {os.strerror(problem.errno or 0)}: {folder}") from None


#: Any of these variables shows that there are credentials. Without them, only the machine itself can provide
#: credentials, as AWS machines do.
_CREDENTIALS = (
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_SKIP_SIGNATURE",
)
_TIMEOUT = "5s"


def check_object_store(title: str, url: str) -> None:
    """Raise `ConfigError` if `url` (`file:///folder`, `s3://bucket/prefix`) names a folder that cannot be written,
    or S3 without credentials. A store that does not answer now is no such error."""
    parts = urlsplit(url)
    if parts.scheme == "file":
        usable_folder(title, Path(unquote(parts.path)))
        return
    require_obstore(title)
    if not _has_credentials(url):
        raise ConfigError(
            f"{title} has no credentials for S3: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY,"
            " or run where the machine has a role"
        )


def require_obstore(title: str) -> None:
    """Raise `ConfigError` if the Python package for object stores is not installed."""
    if importlib.util.find_spec("obstore") is None:
        raise ConfigError(f"{title} needs a Python package that is not installed: pip install 'forgelet[s3]'")


def _has_credentials(url: str) -> bool:
    key, secret = os.environ.get("AWS_ACCESS_KEY_ID"), os.environ.get("AWS_SECRET_ACCESS_KEY")
    if bool(key) != bool(secret):
        return False
    return any(map(os.environ.get, _CREDENTIALS)) or _answers(url)


def _answers(url: str) -> bool:
    # It takes 5 MB, and few processes need it.
    import obstore
    from obstore.exceptions import BaseError
    from obstore.store import from_url

    try:
        store = from_url(url, client_options={"timeout": _TIMEOUT}, retry_config={"max_retries": 0})
        obstore.list_with_delimiter(store, prefix="none")
    except BaseError:
        return False
    return True
