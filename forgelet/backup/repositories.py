"""Repositories in a backup: their refs as they are at its moment, and objects, which are only ever added meanwhile.

Objects are copied after all refs have been read, so that whatever a ref leads to is there, and so is every commit that
a row names. Nothing is removed in between (`api_server/state/backups.py`).
"""

import os
import stat
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO

import orjson

from api_server.git.at_work import alone
from api_server.git.ref_names import KEEP_AROUND
from api_server.git.repositories import UNDER_WAY, Repositories
from forgelet.backup import form
from forgelet.backup.form import Writer

_PACK = (".pack", ".idx")
#: Beside refs and objects; whatever else is there is of processes that are at work.
_KEPT = ("config", "description", "info", "shallow")
_PAUSE_SECONDS = 0.01
_IN_MEMORY = 32 * 2**20


def wait_for_packing(repositories: Repositories, ids: list[int]) -> Iterator[int]:
    """Returns when nobody packs any of them: what is being removed belongs to before. Gives those it waits for."""
    for project_id in ids:
        told = False
        while _is_being_packed(repositories.path(project_id)):
            if not told:
                yield project_id
                told = True
            time.sleep(_PAUSE_SECONDS)


def _is_being_packed(repository: Path) -> bool:
    if not repository.is_dir():
        return False
    with alone(repository, "packing") as descriptor:
        return descriptor is None


class Refs:
    """The refs of many repositories, one line each, in memory or where they are many in a temporary file."""

    def __init__(self) -> None:
        self._lines: IO[bytes] = tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY)  # noqa: SIM115
        self._places: dict[int, int] = {}
        self.missing: set[int] = set()

    def read(self, repositories: Repositories, project_id: int, *, moving_until: float | None = None) -> None:
        """Reads those of one repository, in the place of what was read of it before. Where git may be moving them, it
        is waited for up to `moving_until`, of the monotonic clock."""
        repository = repositories.path(project_id)
        try:
            found = (
                _files_of_refs(repository)[0] if moving_until is None else _at_rest(repository, moving_until)
            )
        except FileNotFoundError:
            self.missing.add(project_id)
            self._places.pop(project_id, None)
            return
        self.missing.discard(project_id)
        texts = {name: content.decode("latin-1") for name, content in found.items()}
        self._places[project_id] = self._lines.seek(0, os.SEEK_END)
        self._lines.write(orjson.dumps(texts) + b"\n")

    def each(self, ids: Iterable[int]) -> Iterator[tuple[int, dict[str, bytes]]]:
        """Of those repositories that were there."""
        for project_id in ids:
            if project_id in self._places:
                self._lines.seek(self._places[project_id])
                texts = orjson.loads(self._lines.readline())
                yield project_id, {name: text.encode("latin-1") for name, text in texts.items()}

    def close(self) -> None:
        self._lines.close()


def _files_of_refs(repository: Path) -> tuple[dict[str, bytes], bool]:
    """Files that hold refs, by their name, and whether none of them is locked. Raises FileNotFoundError where there is
    no repository."""
    found, is_free = {"HEAD": (repository / "HEAD").read_bytes()}, True
    for folder, _, names in os.walk(repository / "refs"):
        for name in names:
            if name.endswith(".lock"):
                is_free = False
                continue
            file = os.path.join(folder, name)  # noqa: PTH118 (much faster, and everybody waits)
            content = _content(file)
            if content is not None:
                found[os.path.relpath(file, repository)] = content
    # Last: a ref goes from its file to this one, never the other way.
    packed = _content(os.fspath(repository / "packed-refs"))
    if packed is not None:
        found["packed-refs"] = packed
    return found, is_free and not (repository / "packed-refs.lock").exists()


def _at_rest(repository: Path, given_up: float) -> dict[str, bytes]:
    """Refs and reflogs of one moment between two moves: by these it is seen which pushes have happened. After
    `given_up`, whose git has died or is very slow, as they are."""
    while True:
        before, _ = _files_of_refs(repository)
        logs = dict(_logs(repository, before))
        after, is_free = _files_of_refs(repository)
        if (before == after and is_free) or time.monotonic() > given_up:
            return before | logs
        time.sleep(_PAUSE_SECONDS)


def _logs(repository: Path, refs: Mapping[str, bytes]) -> Iterator[tuple[str, bytes]]:
    """The reflogs of those refs; others are of refs that came later, and would be in the way of new ones."""
    names = {name for name in refs if name.startswith("refs/")}
    for line in refs.get("packed-refs", b"").decode("utf-8", "surrogateescape").splitlines():
        if line[:1] not in ("#", "^", ""):
            names.add(line.partition(" ")[2])
    for name in ("HEAD", *sorted(names)):
        content = _content(os.fspath(repository / "logs" / name))
        if content is not None:
            yield f"logs/{name}", content


def _content(file: str) -> bytes | None:
    try:
        with open(file, "rb") as opened:  # noqa: PTH123
            return opened.read()
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        return None


def copy(writer: Writer, repositories: Repositories, project_id: int, refs: Mapping[str, bytes]) -> None:
    """Writes one repository to a backup."""
    repository, place = repositories.path(project_id), f"{form.REPOSITORIES}/{project_id}"
    has_logs = any(name.startswith("logs/") for name in refs)
    logs = {} if has_logs else dict(_logs(repository, refs))
    for name, content in {**dict(_kept_since(repository)), **refs, **logs}.items():
        writer.add(f"{place}/{name}", content)
    for name in (*_KEPT, "objects"):
        for file in _files(repository / name):
            _copy_file(writer, file, f"{place}/{file.relative_to(repository)}")


def _kept_since(repository: Path) -> Iterator[tuple[str, bytes]]:
    """Refs that keep commits which rows name are made without a push; each is made once, and never moved."""
    folder = repository / KEEP_AROUND
    for file in folder.iterdir() if folder.is_dir() else ():
        content = _content(os.fspath(file)) if not file.name.endswith(".lock") else None
        if content is not None:
            yield f"{KEEP_AROUND}{file.name}", content


def _files(start: Path) -> Iterator[Path]:
    """A file, or all files of a folder that are whole and stay."""
    if start.is_file():
        yield start
    for folder, folders, names in os.walk(start):
        folders[:] = sorted(one for one in folders if not one.startswith(UNDER_WAY))
        yield from (Path(folder, name) for name in _that_stay(names))


def _that_stay(names: list[str]) -> list[str]:
    """Without what is temporary, locked, or marked for a push; and of a pack that is just arriving, nothing."""
    there = set(names)
    return sorted(
        name
        for name in names
        if not name.startswith(("tmp_", ".tmp-"))
        and not name.endswith((".lock", ".keep"))
        and (not name.startswith("pack-") or {f"{name.partition('.')[0]}{end}" for end in _PACK} <= there)
    )


def _copy_file(writer: Writer, file: Path, name: str) -> None:
    try:
        opened = file.open("rb")
    except FileNotFoundError:
        return
    with opened:
        found = os.fstat(opened.fileno())
        if stat.S_ISREG(found.st_mode):
            writer.copy(name, found.st_size, opened)
