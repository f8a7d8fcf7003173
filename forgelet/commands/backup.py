"""The commands `forgelet backup`, for a running instance, and `forgelet restore`, into an empty place."""

import contextlib
import datetime
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType, TracebackType
from typing import IO, Any

import attrs
import click

from api_server.state.backups import RESTORE_AGAIN, UNFINISHED_RESTORE
from api_server.state.errors import Unavailable
from common.config_errors import ConfigError
from forgelet import frame
from forgelet.backup.backing_up import BackedUp, back_up
from forgelet.backup.contents import Places
from forgelet.backup.form import Verified, verify
from forgelet.backup.restoring import Restored, check_is_empty, restore
from forgelet.frame import Command
from forgelet.instance import Instance
from forgelet.local import embedded_postgres, variables
from forgelet.local.data_directory import DataDirectory

VARIABLE = "FORGELET_BACKUP_PASSPHRASE"


def passphrase(file: Path | None, *, is_new: bool) -> str:
    """Return the passphrase from a file, the variable, or a prompt, which asks twice for a new one. Raise `ConfigError`
    if there is none."""
    if file is not None:
        try:
            phrase = file.read_text("utf-8")
        except OSError as problem:
            raise ConfigError(f"The passphrase file {file} cannot be read: {problem.strerror}") from None
        except UnicodeDecodeError:
            raise ConfigError(f"The passphrase file {file} is not text") from None
        phrase = phrase.strip("\r\n")
        origin = f"The passphrase in {file}"
    elif VARIABLE in os.environ:
        phrase, origin = os.environ[VARIABLE], f"The passphrase in {VARIABLE}"
    elif sys.stdin.isatty():
        phrase = str(click.prompt("Passphrase", hide_input=True, confirmation_prompt=is_new, err=True))
        origin = "The passphrase"
    else:
        raise ConfigError(f"There is no passphrase: give --passphrase-file or {VARIABLE}")
    if not phrase:
        raise ConfigError(f"{origin} is empty")
    return phrase


_EVERY_SECONDS = 0.2


class ProgressLine:
    """A display of progress on standard error, if that is a terminal. Its line is removed at the end of the block."""

    def __init__(self) -> None:
        self._is_seen = sys.stderr.isatty()
        self._last = 0.0
        self._width = 0

    def __enter__(self) -> "ProgressLine":
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._show("")

    def print_items(self, step: str, done: int, of: int) -> None:
        """Show the present step, and how many of its items are done. With `of` 0, show only the step."""
        if self._is_due():
            self._show(f"{step}: {done:,} of {of:,} ({100 * done // of} %)" if of else step)

    def print_bytes(self, step: str, done: int) -> None:
        """Show the present step, and how many bytes are done."""
        if self._is_due():
            self._show(f"{step}: {done / 2**20:,.1f} MiB")

    def _is_due(self) -> bool:
        now = time.monotonic()
        if not self._is_seen or now - self._last < _EVERY_SECONDS:
            return False
        self._last = now
        return True

    def _show(self, text: str) -> None:
        if self._is_seen:
            sys.stderr.write(f"\r{text.ljust(self._width)}\r")
            sys.stderr.flush()
            self._width = len(text)


_STDOUT = "-"
PASSPHRASE_FILE = click.option(
    "--passphrase-file",
    type=click.Path(path_type=Path, dir_okay=False),
    help=f"File with the passphrase that protects the backup; default is {VARIABLE}, or a prompt.",
)


@click.command("backup", cls=Command)
@click.argument("file")
@PASSPHRASE_FILE
@click.option("--verify", "verifies", is_flag=True, help="Read and check the backup after writing it.")
@click.pass_obj
def backup_command(instance: Instance, file: str, passphrase_file: Path | None, *, verifies: bool) -> None:
    """Write a backup of the whole instance to FILE.

    If FILE is `-`, write to standard output.

    The service may run meanwhile: the backup shows one moment, near its beginning. It contains the database,
    repositories, stored objects, and the secret key, encrypted with the passphrase. Nobody can restore it without the
    passphrase: store that elsewhere. FILE appears, or is replaced, when the backup is complete.

    If a repository or object that the database names is missing, the command exits with status 1; the backup is good
    for everything else.
    """
    if file == _STDOUT and verifies:
        raise ConfigError("--verify needs a file: leave it out, and use `forgelet restore --verify`")
    if file == _STDOUT and sys.stdout.isatty():
        raise ConfigError("A backup is no text for a terminal: name a file")
    up = instance.data.path if instance.data is not None else None
    places = Places.of(instance.api_settings, instance.ready_database_url, up)
    with ending_tidily(), that_may_fail(), _target(file) as stream, ProgressLine() as display:
        phrase = passphrase(passphrase_file, is_new=True)
        result = back_up(places, phrase, stream, datetime.datetime.now(datetime.UTC), display.print_items)
    if verifies:
        with Path(file).open("rb") as stream:
            verify(stream, phrase)
    _report(file, result, verified=verifies)


@contextlib.contextmanager
def _target(file: str) -> Iterator[IO[bytes]]:
    """Yield a stream for `file`. The file appears at the end of the block if that succeeds. Only its owner can read
    it."""
    if file == _STDOUT:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    path = Path(file).absolute()
    try:
        if path.exists() and not path.is_file():  # a device or a pipe is not replaced
            descriptor, unfinished = os.open(path, os.O_WRONLY), None
        else:
            descriptor, unfinished = tempfile.mkstemp(prefix=f"{path.name}.unfinished-", dir=path.parent)
    except OSError as problem:
        raise ConfigError(f"No backup can be written to {path}: {problem.strerror}") from None
    if unfinished is None:
        with os.fdopen(descriptor, "wb") as stream:
            yield stream
        return
    try:
        with os.fdopen(descriptor, "wb") as stream:
            yield stream
            stream.flush()
            os.fsync(descriptor)
        Path(unfinished).replace(path)
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    finally:
        Path(unfinished).unlink(missing_ok=True)


@contextlib.contextmanager
def ending_tidily() -> Iterator[None]:
    """Make SIGTERM and SIGHUP end the block as Ctrl-C does, so that no unfinished file remains."""

    def end(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def that_may_fail() -> Iterator[None]:
    """Turn errors of disks and object stores after the beginning into exit status 1."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as problem:
        raise click.ClickException(": ".join(filter(None, (problem.strerror, problem.filename)))) from None
    except Unavailable as problem:
        raise click.ClickException(": ".join(filter(None, (str(problem), problem.cause)))) from None


def _report(file: str, result: BackedUp, *, verified: bool) -> None:
    for missing in result.missing:
        frame.note(f"Missing: {missing}")
    text = (
        f"Backed up {result.projects:,} projects, {result.objects:,} stored objects, {result.rows:,} rows:"
        f" {result.bytes / 2**20:,.1f} MiB{' in ' + file if file != _STDOUT else ''}{', verified' if verified else ''}."
        f" Pushes waited for {result.pushes_waited:.2f} s."
    )
    if file == _STDOUT:
        frame.note(text)
    else:
        frame.answer({"file": file, "verified": verified, **attrs.asdict(result)}, text)
    if result.missing:
        raise click.ClickException(
            f"{len(result.missing):,} repositories or objects that the database names are missing, in the backup too"
        )


_STDIN = "-"
#: The API server's folder in a `forgelet up`.
API = "api"


@click.command("restore", cls=Command)
@click.argument("file")
@click.option(
    "--data-dir",
    metavar="FOLDER",
    envvar="FORGELET_DATA_DIR",
    show_envvar=True,
    help="Folder to restore into; must be empty or not exist.",
)
@PASSPHRASE_FILE
@click.option(
    "--database-url",
    envvar="FORGELET_DATABASE_URL",
    show_envvar=True,
    help="An empty PostgreSQL database, for a server that does not use `forgelet up`; FOLDER is then that "
    "server's data_dir. Use the variable to keep the password out of process lists.",
)
@click.option("--verify", "verifies", is_flag=True, help="Only read FILE and say whether it can be restored.")
def restore_command(
    file: str,
    data_dir: str | None,
    passphrase_file: Path | None,
    database_url: str | None,
    *,
    verifies: bool,
) -> None:
    """Restore the backup FILE into an empty folder.

    If FILE is `-`, read standard input. Afterwards start `forgelet up` with that folder.

    The command changes nothing that already exists, and a failed restore leaves nothing behind. A backup of an older
    version is migrated to this version's schema. Edges are told to forget everything as soon as the service runs.
    """
    if verifies:
        _verify(file, passphrase_file)
        return
    if not data_dir:
        raise ConfigError("Name the folder to restore into with --data-dir")
    with (
        ending_tidily(),
        that_may_fail(),
        _source(file) as stream,
        ProgressLine() as display,
        _places(Path(data_dir).absolute(), database_url) as places,
    ):
        check_is_empty(places)
        phrase = passphrase(passphrase_file, is_new=False)
        result = restore(places, phrase, stream, display.print_bytes)
    _report_restored(result, Path(data_dir), database_url)


@contextlib.contextmanager
def _source(file: str) -> Iterator[IO[bytes]]:
    if file == _STDIN:
        yield sys.stdin.buffer
        return
    with contextlib.ExitStack() as stack:
        try:
            stream = stack.enter_context(Path(file).open("rb"))
        except OSError as problem:
            raise ConfigError(f"The backup {file} cannot be read: {problem.strerror}") from None
        yield stream


@contextlib.contextmanager
def _places(folder: Path, database_url: str | None) -> Iterator[Places]:
    """Yield the empty places to restore into. Remove everything from them again if the block raises."""
    for data_dir in (folder, folder / API):
        if (data_dir / UNFINISHED_RESTORE).exists():
            raise ConfigError(f"A restore into {folder} is under way, or was killed: {RESTORE_AGAIN}")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} is not empty: name another folder with --data-dir")
    existed = folder.exists()
    try:
        if database_url:
            yield _of_server(folder, database_url, None)
        else:
            with _own_postgres(folder) as url:
                yield _of_server(folder / API, url, folder)
    except BaseException:
        _empty(folder, existed=existed)
        raise


def _of_server(data_dir: Path, database_url: str, up: Path | None) -> Places:
    environment = {
        **os.environ,
        f"{variables.API.prefix}DATABASE_URL": database_url,
        f"{variables.API.prefix}DATA_DIR": str(data_dir),
    }
    return Places.of(variables.API.sources(environment).settings(), database_url, up)


@contextlib.contextmanager
def _own_postgres(folder: Path) -> Iterator[str]:
    """Start the PostgreSQL of the future `forgelet up` and yield its URL. During the block, nobody else can use the
    folder."""
    data = DataDirectory(folder)
    with data.opened():
        cluster = embedded_postgres.cluster_of(data)
        try:
            cluster.start(data.log("postgres"))
            yield cluster.url()
        finally:
            cluster.stop()


def _empty(folder: Path, *, existed: bool) -> None:
    with contextlib.suppress(OSError):
        for child in folder.iterdir():
            if child.is_symlink():  # root's PostgreSQL may be in another folder
                shutil.rmtree(child.resolve(), ignore_errors=True)
                child.unlink()
            elif child.is_dir():
                shutil.rmtree(child, ignore_errors=True)
            else:
                child.unlink()
        if not existed:
            folder.rmdir()


def _verify(file: str, passphrase_file: Path | None) -> None:
    phrase = passphrase(passphrase_file, is_new=False) if passphrase_file or VARIABLE in os.environ else None
    with _source(file) as stream:
        verified = verify(stream, phrase)
    _report_verified(file, verified)


def _report_verified(file: str, verified: Verified) -> None:
    state = (
        "the passphrase fits"
        if verified.passphrase_fits
        else "without a passphrase, it was not checked whether one fits and whether the backup was changed"
    )
    for missing in verified.missing:
        frame.note(f"Missing when it was made: {missing}")
    frame.answer(
        {"file": file, **attrs.asdict(verified)},
        f"{file} can be restored: made {verified.made_at} by forgelet {verified.forgelet},"
        f" {verified.projects:,} projects, {verified.objects:,} stored objects, {verified.rows:,} rows; {state}.",
    )


def _report_restored(made: Restored, folder: Path, database_url: str | None) -> None:
    for missing in made.missing:
        frame.note(f"Missing in the backup: {missing}")
    result: Mapping[str, Any] = {"data_dir": str(folder), **attrs.asdict(made)}
    start_command = (
        f"`forgelet up --data-dir {folder}`"
        if database_url is None
        else "the API server with this folder and database"
    )
    upgraded = (
        f", its schema brought up to date by {len(made.migrations)} migrations" if made.migrations else ""
    )
    frame.answer(
        result,
        f"Restored {made.projects:,} projects, {made.objects:,} stored objects, {made.rows:,} rows{upgraded}."
        f" Start {start_command}.",
    )
