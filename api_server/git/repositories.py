"""The folders of the bare repositories: one for each numeric project id, durable as soon as it has its name.

git and libgit2 sync contents (`spawning.CHILD_CONFIGURATION`, `enable_fsync_gitdir`) and then rename files, which a
power cut undoes unless the folder is synced as well. libgit2 syncs folders, except for new and deleted folders of
branches' names and for HEAD; git never does.
"""

import asyncio
import errno
import os
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import attrs
import pygit2
from pygit2.enums import ConfigLevel, RepositoryInitFlag, RepositoryOpenFlag
from pygit2.references import References

from api_server.git.errors import RepositoryExistsError, RepositoryMissingError, classified_errors
from api_server.git.ref_names import check_branch_name
from api_server.services import Key


def sync_refs(repository: Path, refs: Iterable[str]) -> None:
    """Sync refs that have moved (`HEAD`, `refs/heads/main`) to the disk, as they are now. Blocks: call it in a
    thread."""
    _sync({folder for ref in refs for folder in _folders_up_to(repository, ref)} | {repository})


def sync_objects(repository: Path, folders: Iterable[str]) -> None:
    """Sync the names of objects in these folders of `objects` (`pack`, `0a`) to the disk. Blocks: call it in a
    thread."""
    objects = repository / "objects"
    _sync({objects, *(objects / name for name in folders)})


def sync_tree(folder: Path) -> None:
    """Sync all files and folders of a new repository to the disk. Blocks: call it in a thread."""
    for parent, _, names in os.walk(folder):
        _sync([*(Path(parent, name) for name in names), Path(parent)])


def sync_folder(folder: Path) -> None:
    """Sync the names in one folder to the disk. Blocks: call it in a thread."""
    _sync([folder])


def _folders_up_to(repository: Path, ref: str) -> Iterator[Path]:
    """Yield the folders from the ref's file up to the repository: deleting a ref may have removed some of them."""
    folder = (repository / ref).parent
    while folder != repository and repository in folder.parents:
        yield folder
        folder = folder.parent


def _sync(paths: Iterable[Path]) -> None:
    for path in paths:
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            continue
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


# libgit2 is isolated like our git children: it reads no configuration of users or the system, and accepts folders of
# any owner.
pygit2.settings.owner_validation = False
for _level in (ConfigLevel.SYSTEM, ConfigLevel.GLOBAL, ConfigLevel.XDG, ConfigLevel.PROGRAMDATA):
    pygit2.settings.search_path[_level] = ""
pygit2.settings.enable_fsync_gitdir(True)

#: Prefix of the folders in which git keeps the objects of a push until it is accepted.
UNDER_WAY = "tmp_objdir-"


class _OnDemand:
    """An attribute that is created at each access, unless the instance has its own attribute of this name."""

    def __init__(self, collection: Callable[["Repository"], Any]) -> None:
        self._collection = collection

    def __get__(self, repository: "Repository", _owner: type) -> Any:
        return self._collection(repository)


class Repository(pygit2.Repository):
    """An open repository. Opening it is cheap (0.1 ms). Use each in one thread at a time and keep none for long.

    Its files are closed with the last reference to it. pygit2's own class refers to itself by its collections, and so
    keeps packs open, which may have been replaced long ago, until the garbage collector runs: in an idle server it
    never does.
    """

    references = _OnDemand(References)

    def __init__(self, path: str, flags: RepositoryOpenFlag) -> None:
        super().__init__(path, flags)
        del self.branches, self.references, self.remotes, self.submodules


@attrs.frozen
class Repositories:
    """Bare repositories under `root`, as `<root>/<id modulo 256 in hex>/<id>.git`."""

    root: Path

    def path(self, project_id: int) -> Path:
        """Return the repository's folder, existing or not."""
        return self.root / f"{project_id % 256:02x}" / f"{project_id}.git"

    def exists(self, project_id: int) -> bool:
        return (self.path(project_id) / "HEAD").is_file()

    def open(self, project_id: int) -> Repository:
        """Open the repository. Raise `RepositoryMissingError`."""
        try:
            return open_repository(self.path(project_id))
        except pygit2.GitError as problem:
            raise RepositoryMissingError("The repository does not exist.") from problem

    async def create(self, project_id: int, default_branch: str = "main") -> None:
        """Create an empty repository, completely or not at all. Raise `RepositoryExistsError`, `InvalidNameError`,
        `StorageUnavailableError`."""
        check_branch_name(default_branch)
        with classified_errors():
            await asyncio.to_thread(self._create, project_id, default_branch)

    async def ensure(self, project_id: int, default_branch: str = "main") -> None:
        """Create an empty repository unless there is one, even if somebody else is just creating it. Raise
        `InvalidNameError`."""
        if not self.exists(project_id):
            with suppress(RepositoryExistsError):
                await self.create(project_id, default_branch)

    async def delete(self, project_id: int) -> None:
        """Remove the repository at once, and then free its space. Do nothing if there is none."""
        trash = self._unfinished()
        try:
            self.path(project_id).rename(trash)
        except FileNotFoundError:
            return
        await asyncio.to_thread(shutil.rmtree, trash, ignore_errors=True)

    async def size(self, project_id: int) -> int:
        """Return the bytes of the repository's objects, without those of pushes that are still under way."""
        return await asyncio.to_thread(bytes_below, self.path(project_id) / "objects")

    def _create(self, project_id: int, default_branch: str) -> None:
        unfinished = self._unfinished()
        flags = RepositoryInitFlag.BARE | RepositoryInitFlag.MKPATH | RepositoryInitFlag.NO_REINIT
        destination = self.path(project_id)
        try:
            pygit2.init_repository(str(unfinished), flags=flags, initial_head=default_branch).free()
            shutil.rmtree(unfinished / "hooks", ignore_errors=True)
            sync_tree(unfinished)
            destination.parent.mkdir(parents=True, exist_ok=True)
            unfinished.rename(destination)
        except OSError as problem:
            if problem.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            raise RepositoryExistsError("The repository exists already.") from problem
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)  # leftovers if it has failed
        sync_folder(destination.parent)
        sync_folder(self.root)

    def _unfinished(self) -> Path:
        """Return a new path on the same disk for a repository that is being created or deleted."""
        folder = self.root / "unfinished"
        folder.mkdir(parents=True, exist_ok=True)
        return folder / uuid.uuid4().hex


def open_repository(path: Path) -> Repository:
    return Repository(str(path), RepositoryOpenFlag.BARE | RepositoryOpenFlag.NO_SEARCH)


def bytes_below(folder: Path) -> int:
    """Return the bytes of all files in the folder. In a repository, those of pushes that are still under way are left
    out. Blocks: call it in a thread."""
    total = 0
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(UNDER_WAY)]
        for name in names:
            try:
                total += os.lstat(os.path.join(parent, name)).st_size  # noqa: PTH118 (20 times as fast here)
            except FileNotFoundError:
                continue  # git replaced it meanwhile
    return total


REPOSITORIES = Key[Repositories]("repositories")
