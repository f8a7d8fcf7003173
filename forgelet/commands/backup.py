"""`forgelet backup`: a backup of the whole instance, made while it runs."""

import contextlib
import datetime
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import IO

import attrs
import click

from api_server.state.errors import Unavailable
from common.mistakes import Mistake
from forgelet import output
from forgelet.backup.backing_up import BackedUp, back_up
from forgelet.backup.passphrase import VARIABLE, passphrase
from forgelet.backup.places import Places
from forgelet.backup.reading import verify
from forgelet.commands.progress import Telling
from forgelet.frame import Command
from forgelet.instance import Instance

_STDOUT = "-"
PASSPHRASE_FILE = click.option(
    "--passphrase-file",
    type=click.Path(path_type=Path, dir_okay=False),
    help=f"File with the passphrase that protects the backup; without it {VARIABLE}, or a prompt.",
)


@click.command("backup", cls=Command)
@click.argument("file")
@PASSPHRASE_FILE
@click.option("--verify", "verifies", is_flag=True, help="Reads the backup once more when it is written.")
@click.pass_obj
def backup_command(instance: Instance, file: str, passphrase_file: Path | None, *, verifies: bool) -> None:
    """Writes a backup of the whole instance to FILE, or to standard output where that is `-`.

    The service may run meanwhile: the backup is of one moment, near its beginning. It has the database, repositories,
    stored objects, and the secret key, sealed with the passphrase. Without the passphrase nobody restores it: keep that
    elsewhere. FILE appears, or is replaced, when the backup is whole.

    Ends with status 1 where a repository or an object is missing that the database names; the backup is good for all
    else.
    """
    if file == _STDOUT and verifies:
        raise Mistake("--verify needs a file: leave it out, and use `forgelet restore --verify`")
    if file == _STDOUT and sys.stdout.isatty():
        raise Mistake("A backup is no text for a terminal: name a file")
    chosen = passphrase(passphrase_file, is_new=True)
    up = instance.data.path if instance.data is not None else None
    places = Places.of(instance.api_settings, instance.ready_database_url, up)
    with ending_tidily(), that_may_fail(), _target(file) as stream, Telling() as telling:
        made = back_up(places, chosen, stream, datetime.datetime.now(datetime.UTC), telling.tell)
    if verifies:
        with Path(file).open("rb") as stream:
            verify(stream, chosen)
    _say(file, made, verified=verifies)


@contextlib.contextmanager
def _target(file: str) -> Iterator[IO[bytes]]:
    """What becomes `file` at the end of the block, if that is reached; for nobody else to read."""
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
        raise Mistake(f"No backup can be written to {path}: {problem.strerror}") from None
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
    """SIGTERM and SIGHUP end the block as Ctrl-C does, so that nothing unfinished stays."""

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
    """What fails after the beginning ends with status 1: a disk is full, or an object store does not answer."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as problem:
        raise click.ClickException(": ".join(filter(None, (problem.strerror, problem.filename)))) from None
    except Unavailable as problem:
        raise click.ClickException(": ".join(filter(None, (str(problem), problem.cause)))) from None


def _say(file: str, made: BackedUp, *, verified: bool) -> None:
    for one in made.missing:
        output.note(f"Missing: {one}")
    text = (
        f"Backed up {made.projects:,} projects, {made.objects:,} stored objects, {made.rows:,} rows:"
        f" {made.bytes / 2**20:,.1f} MiB{' in ' + file if file != _STDOUT else ''}{', verified' if verified else ''}."
        f" Pushes waited for {made.pushes_waited:.2f} s."
    )
    if file == _STDOUT:
        output.note(text)
    else:
        output.answer({"file": file, "verified": verified, **attrs.asdict(made)}, text)
    if made.missing:
        raise click.ClickException(
            f"{len(made.missing):,} things that the database names are missing, so they are not in the backup"
        )
