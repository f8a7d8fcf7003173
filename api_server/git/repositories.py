"""Where the bare repositories live: one folder for each numeric project id, durable once it has its name.

git and libgit2 sync contents (`spawning.CHILD_CONFIGURATION`, `enable_fsync_gitdir`) and then rename, which a power cut
undoes unless the folder is synced as well. libgit2 does so, but for new and deleted names of branches' folders and for
HEAD; git never does.
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

from api_server.git.errors import RepositoryExistsError, RepositoryMissingError, told_apart
from api_server.git.ref_names import check_branch_name
from api_server.services import Key


def sync_refs(repository: Path, refs: Iterable[str]) -> None:
    """Return when moved refs (`HEAD`, `refs/heads/main`) are on the disk as they are now. Blocks."""
    _sync({folder for ref in refs for folder in _folders_up_to(repository, ref)} | {repository})


def sync_objects(repository: Path, folders: Iterable[str]) -> None:
    """Likewise the objects in these folders of `objects`: `pack`, `0a`. Blocks."""
    objects = repository / "objects"
    _sync({objects, *(objects / name for name in folders)})


def sync_tree(folder: Path) -> None:
    """Sync all files and folders of a new repository to the disk. Blocks."""
    for parent, _, names in os.walk(folder):
        _sync([*(Path(parent, name) for name in names), Path(parent)])


def sync_folder(folder: Path) -> None:
    """Sync the names in one folder to the disk. Blocks."""
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


# libgit2 obeys the same isolation as our git children: nobody's configuration, and folders of any owner.
pygit2.settings.owner_validation = False
for _level in (ConfigLevel.SYSTEM, ConfigLevel.GLOBAL, ConfigLevel.XDG, ConfigLevel.PROGRAMDATA):
    pygit2.settings.search_path[_level] = ""
pygit2.settings.enable_fsync_gitdir(True)

#: Where git keeps the objects of a push until it is taken.
UNDER_WAY = "tmp_objdir-"


class _OnDemand:
    """Gives way to an attribute of the same name in the instance, as long as there is one."""

    def __init__(self, collection: Callable[["Repository"], Any]) -> None:
        self._collection = collection

    def __get__(self, repository: "Repository", _owner: type) -> Any:
        return self._collection(repository)


class Repository(pygit2.Repository):
    """An open repository. Cheap to open (0.1 ms); use each from one thread at a time and keep none for long.

    Its files are closed with the last reference to it. pygit2's own refers to itself by its collections, and keeps
    packs open, which may long be replaced, until somebody looks for garbage: in a quiet server nobody does.
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
        """Raise `RepositoryMissingError`."""
        try:
            return open_repository(self.path(project_id))
        except pygit2.GitError as problem:
            raise RepositoryMissingError("The repository does not exist.") from problem

    async def create(self, project_id: int, default_branch: str = "main") -> None:
        """Make an empty one, complete or not at all. Raise `RepositoryExistsError`, `InvalidNameError`,
        `StorageUnavailableError`."""
        check_branch_name(default_branch)
        with told_apart():
            await asyncio.to_thread(self._create, project_id, default_branch)

    async def ensure(self, project_id: int, default_branch: str = "main") -> None:
        """Make an empty one unless there is one, whoever else is making it. Raise `InvalidNameError`."""
        if not self.exists(project_id):
            with suppress(RepositoryExistsError):
                await self.create(project_id, default_branch)

    async def delete(self, project_id: int) -> None:
        """Take the repository away at once and then frees its space. Does nothing when there is none."""
        gone = self._unfinished()
        try:
            self.path(project_id).rename(gone)
        except FileNotFoundError:
            return
        await asyncio.to_thread(shutil.rmtree, gone, ignore_errors=True)

    async def size(self, project_id: int) -> int:
        """Bytes of the objects that it has; what a push is still bringing is not among them."""
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
            shutil.rmtree(unfinished, ignore_errors=True)  # what is left where it failed
        sync_folder(destination.parent)
        sync_folder(self.root)

    def _unfinished(self) -> Path:
        """Return a name on the same disk for what is not yet, or no longer, a repository."""
        folder = self.root / "unfinished"
        folder.mkdir(parents=True, exist_ok=True)
        return folder / uuid.uuid4().hex


def open_repository(path: Path) -> Repository:
    return Repository(str(path), RepositoryOpenFlag.BARE | RepositoryOpenFlag.NO_SEARCH)


def bytes_below(folder: Path) -> int:
    """Bytes of all files in it, without those of pushes that are under way in a repository. Blocks."""
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
