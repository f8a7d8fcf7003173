"""`forgelet restore`: a backup becomes an instance, in a place where nothing is yet."""

import contextlib
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import attrs
import click

from api_server.state.backups import RESTORE_AGAIN, UNFINISHED_RESTORE
from common.mistakes import Mistake
from forgelet import output
from forgelet.backup.passphrase import VARIABLE, passphrase
from forgelet.backup.places import Places
from forgelet.backup.reading import Verified, verify
from forgelet.backup.restoring import Restored, check_is_empty, restore
from forgelet.commands.backup import PASSPHRASE_FILE, ending_tidily, that_may_fail
from forgelet.commands.progress import Telling
from forgelet.frame import Command
from forgelet.local import embedded_postgres, variables
from forgelet.local.data_directory import DataDirectory

_STDIN = "-"
#: The API server's part of a `forgelet up`.
API = "api"


@click.command("restore", cls=Command)
@click.argument("file")
@click.option(
    "--data-dir",
    metavar="FOLDER",
    envvar="FORGELET_DATA_DIR",
    show_envvar=True,
    help="Where to restore to; has to be empty, or not there.",
)
@PASSPHRASE_FILE
@click.option(
    "--database-url",
    envvar="FORGELET_DATABASE_URL",
    show_envvar=True,
    help="An empty PostgreSQL database for a server that is run without `forgelet up`; FOLDER is then that server's"
    " data_dir. The variable keeps the password out of process lists.",
)
@click.option(
    "--verify", "verifies", is_flag=True, help="Only reads FILE and says whether it could be restored."
)
def restore_command(
    file: str,
    data_dir: str | None,
    passphrase_file: Path | None,
    database_url: str | None,
    *,
    verifies: bool,
) -> None:
    """Restores the backup FILE (`-` is standard input) into an empty folder, so that `forgelet up` goes on from there.

    Nothing that is there already is touched; what cannot be restored leaves nothing behind. A backup of an older
    version is brought to this one's schema. Edges are told to forget everything as soon as the service runs.
    """
    if verifies:
        _verify(file, passphrase_file)
        return
    if not data_dir:
        raise Mistake("Name the folder to restore to by --data-dir")
    with ending_tidily(), that_may_fail(), _source(file) as stream, Telling() as telling:
        chosen = passphrase(passphrase_file, is_new=False)
        with _places(Path(data_dir).absolute(), database_url) as places:
            check_is_empty(places)
            made = restore(places, chosen, stream, telling.tell_bytes)
    _say(made, Path(data_dir), database_url)


@contextlib.contextmanager
def _source(file: str) -> Iterator[IO[bytes]]:
    if file == _STDIN:
        yield sys.stdin.buffer
        return
    with contextlib.ExitStack() as stack:
        try:
            stream = stack.enter_context(Path(file).open("rb"))
        except OSError as problem:
            raise Mistake(f"The backup {file} cannot be read: {problem.strerror}") from None
        yield stream


@contextlib.contextmanager
def _places(folder: Path, database_url: str | None) -> Iterator[Places]:
    """Where it is restored to; all of it is gone again where the block raises."""
    for data_dir in (folder, folder / API):
        if (data_dir / UNFINISHED_RESTORE).exists():
            raise Mistake(f"A restore into {folder} is under way, or was killed: {RESTORE_AGAIN}")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise Mistake(f"{folder} is not empty: name another folder by --data-dir")
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
    """The PostgreSQL of the `forgelet up` that there will be; while it lasts nobody else uses the folder."""
    data = DataDirectory(folder)
    with data.opened():
        cluster = embedded_postgres.of(data)
        try:
            cluster.start(data.log("postgres"))
            yield cluster.url()
        finally:
            cluster.stop()


def _empty(folder: Path, *, existed: bool) -> None:
    with contextlib.suppress(OSError):
        for one in folder.iterdir():
            if one.is_symlink():  # root's PostgreSQL lies elsewhere
                shutil.rmtree(one.resolve(), ignore_errors=True)
                one.unlink()
            elif one.is_dir():
                shutil.rmtree(one, ignore_errors=True)
            else:
                one.unlink()
        if not existed:
            folder.rmdir()


def _verify(file: str, passphrase_file: Path | None) -> None:
    chosen = passphrase(passphrase_file, is_new=False) if passphrase_file or VARIABLE in os.environ else None
    with _source(file) as stream:
        found = verify(stream, chosen)
    _say_verified(file, found)


def _say_verified(file: str, found: Verified) -> None:
    tried = (
        "the passphrase fits"
        if found.passphrase_fits
        else "without a passphrase it was not seen whether that fits, and whether somebody has changed the backup"
    )
    for one in found.missing:
        output.note(f"Missing when it was made: {one}")
    output.answer(
        {"file": file, **attrs.asdict(found)},
        f"{file} can be restored: made {found.made_at} by forgelet {found.forgelet}, {found.projects:,} projects,"
        f" {found.objects:,} stored objects, {found.rows:,} rows; {tried}.",
    )


def _say(made: Restored, folder: Path, database_url: str | None) -> None:
    for one in made.missing:
        output.note(f"Missing in the backup: {one}")
    told: Mapping[str, Any] = {"data_dir": str(folder), **attrs.asdict(made)}
    how = f"`forgelet up --data-dir {folder}`" if database_url is None else "the API server with these two"
    upgraded = (
        f", its schema brought up to date by {len(made.migrations)} migrations" if made.migrations else ""
    )
    output.answer(
        told,
        f"Restored {made.projects:,} projects, {made.objects:,} stored objects, {made.rows:,} rows{upgraded}."
        f" Start {how}.",
    )
