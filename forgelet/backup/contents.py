"""The content of a backup other than tables: small files, repositories and stored objects.

Objects of git are copied after all refs have been read, so the backup contains every object that a ref reaches, and
every commit that a row names. Nothing is removed in between (`api_server/state/backups.py`).

A backup contains the stored objects that a row names, the indices of archives, and the stored heads of the audit trail.
Each is written once and never changed, so it may be copied long after the moment of the backup.
"""

import asyncio
import io
import os
import re
import stat
import tempfile
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import IO

import attrs
import orjson

from api_server.audit.chain import HEADS_FOLDER
from api_server.git.at_work import alone
from api_server.git.ref_names import KEEP_AROUND
from api_server.git.repositories import UNDER_WAY, Repositories
from api_server.settings import Settings
from api_server.state.object_store import open_objects
from api_server.state.objects import INDEX, Objects
from api_server.state.secrets import KEY_FILE as SECRET_KEY
from forgelet.backup import form
from forgelet.backup.form import PIECE, Source, Writer
from forgelet.local.data_directory import RUNNING

#: Folders of a `forgelet up` that are backed up, without the files that belong to the machine.
_OF_UP = ("secrets", "state")
_OF_THE_MACHINE = frozenset({"postgres-password", RUNNING})
_LARGEST_FILE = 64 * 1024


@attrs.frozen
class Places:
    """The database, the API server's data directory and, for a `forgelet up`, its folder."""

    database_url: str = attrs.field(repr=False)
    data_dir: Path
    object_store_url: str = ""
    object_store_timeout: float = 20.0
    up: Path | None = None

    @classmethod
    def of(cls, settings: Settings, database_url: str, up: Path | None) -> "Places":
        return cls(
            database_url=database_url,
            data_dir=settings.data_dir,
            object_store_url=settings.object_store_url,
            object_store_timeout=settings.object_store_timeout,
            up=up,
        )

    @property
    def repositories(self) -> Repositories:
        return Repositories(self.data_dir / "repositories")

    def objects(self) -> Objects:
        return open_objects(self.object_store_url, self.data_dir, timeout=self.object_store_timeout)

    def small_files(self) -> dict[str, str]:
        """Return the files that are sealed in a backup, by path: the secret key, and secrets and state of a `forgelet
        up`."""
        contents = {SECRET_KEY: (self.data_dir / SECRET_KEY).read_text()}
        for folder in _OF_UP if self.up is not None else ():
            for file in sorted((self.up / folder).glob("*")) if self.up is not None else ():
                if _is_kept(file):
                    contents[f"{folder}/{file.name}"] = file.read_text()
        return contents


def _is_kept(file: Path) -> bool:
    return (
        file.name not in _OF_THE_MACHINE
        and not file.name.startswith(".")
        and file.is_file()
        and file.stat().st_size <= _LARGEST_FILE
    )


def small_files_of_up(files: Mapping[str, str]) -> dict[str, str]:
    """Return the files that belong to a `forgelet up`."""
    return {name: text for name, text in files.items() if name.partition("/")[0] in _OF_UP}


async def is_without_objects(objects: Objects) -> bool:
    """Return whether the folders that forgelet uses in an object store are empty."""
    for folder in ("projects", "audit"):
        async for batch in objects.batches(folder):
            if batch:
                return False
    return True


_PACK = (".pack", ".idx")
#: The files that are copied in addition to refs and objects. All others belong to running processes.
_COPIED = ("config", "description", "info", "shallow")
_PAUSE_SECONDS = 0.01
_IN_MEMORY = 32 * 2**20


def wait_for_packing(repositories: Repositories, ids: list[int]) -> Iterator[int]:
    """Wait until no repository is being packed, so that no object is removed later. Yield the id of each project whose
    repository is being packed."""
    for project_id in ids:
        reported = False
        while _is_being_packed(repositories.path(project_id)):
            if not reported:
                yield project_id
                reported = True
            time.sleep(_PAUSE_SECONDS)


def _is_being_packed(repository: Path) -> bool:
    if not repository.is_dir():
        return False
    with alone(repository, "packing") as descriptor:
        return descriptor is None


class Refs:
    """The refs of many repositories, one line each, in memory or, if they are large, in a temporary file."""

    def __init__(self) -> None:
        self._lines: IO[bytes] = tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY)  # noqa: SIM115
        self._places: dict[int, int] = {}
        self.missing: set[int] = set()

    def read(self, repositories: Repositories, project_id: int, *, moving_until: float | None = None) -> None:
        """Read the refs of one repository, in place of those that were read before. With `moving_until` (a time of the
        monotonic clock), wait until then for a moment in which git is not moving them."""
        repository = repositories.path(project_id)
        try:
            files = (
                _files_of_refs(repository)[0] if moving_until is None else _at_rest(repository, moving_until)
            )
        except FileNotFoundError:
            self.missing.add(project_id)
            self._places.pop(project_id, None)
            return
        self.missing.discard(project_id)
        texts = {name: content.decode("latin-1") for name, content in files.items()}
        self._places[project_id] = self._lines.seek(0, os.SEEK_END)
        self._lines.write(orjson.dumps(texts) + b"\n")

    def each(self, ids: Iterable[int]) -> Iterator[tuple[int, dict[str, bytes]]]:
        """Yield the refs of the given projects that have a repository."""
        for project_id in ids:
            if project_id in self._places:
                self._lines.seek(self._places[project_id])
                texts = orjson.loads(self._lines.readline())
                yield project_id, {name: text.encode("latin-1") for name, text in texts.items()}

    def close(self) -> None:
        self._lines.close()


def _files_of_refs(repository: Path) -> tuple[dict[str, bytes], bool]:
    """Return the files that hold refs, by name, and whether none of them is locked. Raise `FileNotFoundError` if there
    is no repository."""
    contents, is_free = {"HEAD": (repository / "HEAD").read_bytes()}, True
    for folder, _, names in os.walk(repository / "refs"):
        for name in names:
            if name.endswith(".lock"):
                is_free = False
                continue
            file = os.path.join(folder, name)  # noqa: PTH118 (much faster, and pushes wait)
            content = _content(file)
            if content is not None:
                contents[os.path.relpath(file, repository)] = content
    # This file is read last, because refs move from their own files into it, never the other way.
    packed = _content(os.fspath(repository / "packed-refs"))
    if packed is not None:
        contents["packed-refs"] = packed
    return contents, is_free and not (repository / "packed-refs.lock").exists()


def _at_rest(repository: Path, deadline: float) -> dict[str, bytes]:
    """Return refs and reflogs of one moment between two moves; reflogs show which pushes have happened. After the time
    `deadline` (if git has died or is very slow), return them as they are."""
    while True:
        before, _ = _files_of_refs(repository)
        logs = dict(_logs(repository, before))
        after, is_free = _files_of_refs(repository)
        if (before == after and is_free) or time.monotonic() > deadline:
            return before | logs
        time.sleep(_PAUSE_SECONDS)


def _logs(repository: Path, refs: Mapping[str, bytes]) -> Iterator[tuple[str, bytes]]:
    """Yield the reflogs of those refs. Other reflogs belong to later refs, and would block new refs of the same
    name."""
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
        with open(file, "rb") as stream:  # noqa: PTH123
            return stream.read()
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        return None


def copy_repository(
    writer: Writer, repositories: Repositories, project_id: int, refs: Mapping[str, bytes]
) -> None:
    """Write one repository to a backup."""
    repository, prefix = repositories.path(project_id), f"{form.REPOSITORIES}/{project_id}"
    has_logs = any(name.startswith("logs/") for name in refs)
    logs = {} if has_logs else dict(_logs(repository, refs))
    for name, content in {**dict(_keep_around_refs(repository)), **refs, **logs}.items():
        writer.add(f"{prefix}/{name}", content)
    for name in (*_COPIED, "objects"):
        for file in _files(repository / name):
            _copy_file(writer, file, f"{prefix}/{file.relative_to(repository)}")


def _keep_around_refs(repository: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the refs that keep commits named by rows. They are created without a push, and never moved."""
    folder = repository / KEEP_AROUND
    for file in folder.iterdir() if folder.is_dir() else ():
        content = _content(os.fspath(file)) if not file.name.endswith(".lock") else None
        if content is not None:
            yield f"{KEEP_AROUND}{file.name}", content


def _files(start: Path) -> Iterator[Path]:
    """Yield `start` if it is a file, or the complete and permanent files below it."""
    if start.is_file():
        yield start
    for folder, folders, names in os.walk(start):
        folders[:] = sorted(child for child in folders if not child.startswith(UNDER_WAY))
        yield from (Path(folder, name) for name in _permanent(names))


def _permanent(names: list[str]) -> list[str]:
    """Return the names of permanent files, without temporary files, locks, marks of pushes, and incomplete packs."""
    present = set(names)
    return sorted(
        name
        for name in names
        if not name.startswith(("tmp_", ".tmp-"))
        and not name.endswith((".lock", ".keep"))
        and (not name.startswith("pack-") or {f"{name.partition('.')[0]}{end}" for end in _PACK} <= present)
    )


def _copy_file(writer: Writer, file: Path, name: str) -> None:
    try:
        opened = file.open("rb")
    except FileNotFoundError:
        return
    with opened:
        status = os.fstat(opened.fileno())
        if stat.S_ISREG(status.st_mode):
            writer.copy(name, status.st_size, opened)


#: Number of objects that are fetched at once if each costs a request, and the size up to which they are held in memory.
_BATCH = 16
_SMALL_BYTES = 256 * 1024
_HEAD = re.compile(rf"{HEADS_FOLDER}/(\d{{19}})-[0-9a-f]{{64}}")


class Keys:
    """The keys that rows name, in memory or, if they are many, in a temporary file."""

    def __init__(self) -> None:
        self._lines: IO[bytes] = tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY)  # noqa: SIM115
        self.count = 0

    def add(self, keys: Iterable[tuple[str, bool]]) -> None:
        for key, may_have_index in keys:
            self._lines.write(f"{key}\n".encode())
            if may_have_index:
                self._lines.write(f"{key}{INDEX}\n".encode())
            self.count += 1

    def each(self) -> Iterator[str]:
        self._lines.seek(0)
        for line in self._lines:
            yield line.decode().rstrip("\n")

    def close(self) -> None:
        self._lines.close()


@attrs.define
class Tally:
    """The number and bytes of copied objects (without indices), and the keys that rows name but that have no object."""

    count: int = 0
    bytes: int = 0
    missing: list[str] = attrs.field(factory=list)


class Copier:
    """A copier of objects into a backup, one after the other. Several small ones are fetched from S3 at once."""

    def __init__(self, objects: Objects, writer: Writer, runner: asyncio.Runner) -> None:
        self._objects = objects
        self._writer = writer
        self._runner = runner
        self.tally = Tally()

    def copy(self, keys: Iterable[str]) -> Iterator[str]:
        """Copy the objects with these keys. Yield each key after its object. Raise `Unavailable` or `OSError`."""
        if self._objects.folder is not None:
            for key in keys:
                self._copy_file(self._objects.folder / key, key)
                yield key
            return
        remaining = iter(keys)
        while batch := list(islice(remaining, _BATCH)):
            for key, fetched in zip(batch, self._runner.run(self._fetch(batch)), strict=True):
                self._copy_fetched(key, fetched)
                yield key

    def heads(self, last: int) -> list[str]:
        """Return the keys of the audit trail's heads up to the position `last`."""
        return sorted(key for key in self._runner.run(self._head_keys()) if _position(key) <= last)

    async def _head_keys(self) -> list[str]:
        return [key async for key in self._objects.keys(HEADS_FOLDER) if _HEAD.fullmatch(key)]

    def _copy_file(self, file: Path, key: str) -> None:
        try:
            stream = file.open("rb")
        except FileNotFoundError:
            self._is_missing(key)
            return
        with stream:
            size = file.stat().st_size
            self._write(key, size, stream)

    async def _fetch(self, keys: list[str]) -> list[tuple[int, bytes | None] | None]:
        return await asyncio.gather(*map(self._fetch_small, keys))

    async def _fetch_small(self, key: str) -> tuple[int, bytes | None] | None:
        """Return the size of an object and, if it is small, its content. Return None if there is no such object."""
        try:
            size = await self._objects.size(key)
        except FileNotFoundError:
            return None
        if size > _SMALL_BYTES:
            return size, None
        return size, b"".join([chunk async for chunk in self._objects.read(key, 0, size)])

    def _copy_fetched(self, key: str, fetched: tuple[int, bytes | None] | None) -> None:
        if fetched is None:
            self._is_missing(key)
            return
        size, content = fetched
        stream = self._objects.read(key, 0, size) if content is None else None
        source = io.BytesIO(content or b"") if stream is None else _Stream(stream, self._runner)
        self._write(key, size, source)

    def _write(self, key: str, size: int, source: Source) -> None:
        self._writer.copy(f"{form.OBJECTS}/{key}", size, source)
        self.tally.count += not key.endswith(INDEX)
        self.tally.bytes += size

    def _is_missing(self, key: str) -> None:
        if not key.endswith(INDEX):  # a missing index is created again when it is needed
            self.tally.missing.append(key)


def _position(key: str) -> int:
    match = _HEAD.fullmatch(key)
    return int(match[1]) if match is not None else 0


class _Stream:
    """A file that reads from an asynchronous iterator of chunks."""

    def __init__(self, chunks: AsyncIterator[bytes], runner: asyncio.Runner) -> None:
        self._chunks = chunks
        self._runner = runner
        self._buffer = b""

    def read(self, size: int = -1) -> bytes:
        target = PIECE if size < 0 else size
        while len(self._buffer) < target and (chunk := self._runner.run(self._next())):
            self._buffer += chunk
        chunk_read, self._buffer = self._buffer[:target], self._buffer[target:]
        return chunk_read

    async def _next(self) -> bytes:
        return await anext(self._chunks, b"")


async def chunks_of(source: Source) -> AsyncIterator[bytes]:
    """Yield the content of a file in chunks, for the object store."""
    while chunk := source.read(PIECE):
        yield chunk
