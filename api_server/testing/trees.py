"""The contents of folders: copying and restoring them.

A file is identified by its inode, size and times in the file system. A file that has not changed since it was
last seen is not read again; each content that a file has had at a snapshot is stored once.
"""

import errno
import os
import shutil
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import attrs

#: The attributes in the file system by which an unchanged file is recognized.
Marks = tuple[int, ...]


@attrs.frozen
class Entry:
    """A folder, a symbolic link (`target`), or a file, whose content is the stored one with the number
    `content`."""

    mode: int
    target: str | None = None
    content: int | None = None

    @property
    def is_file(self) -> bool:
        return stat.S_ISREG(self.mode)


#: The contents of a folder: entries by path below it, parents before children. None if there is no such
#: folder.
Content = Mapping[str, Entry] | None


class Tree:
    """One folder. Contents of files are stored in `store`, and folders that are removed are moved to
    `discarded`, if that is on the same file system. All methods block; one call at a time."""

    def __init__(self, root: Path, store: Path, discarded: Path) -> None:
        self.root = root
        self._store = store
        self._discarded = discarded
        #: The attributes of files whose present content is stored.
        self._known: dict[str, tuple[Marks, int]] = {}
        self._made = 0

    def take(self) -> Content:
        """Return the present contents. Nobody may be writing there."""
        if not self.root.is_dir():
            return None
        return {path: self._entry(path, status) for path, status in self._walk("")}

    def bring_back(self, content: Content) -> None:
        """Restore the contents. Nobody may be writing there."""
        if content is None:
            if self.root.exists():
                self._discard(self.root)
            self._known.clear()
            return
        self.root.mkdir(parents=True, exist_ok=True)
        there: dict[str, os.stat_result] = {}
        for path, status in self._walk("", within=content):
            if path in content and self._is(content[path], path, status):
                there[path] = status
            else:
                self._discard(self.root / path)
        for path, entry in content.items():
            if path not in there:
                self._make(path, entry)
            elif _is_folder(entry) and there[path].st_mode != entry.mode:
                (self.root / path).chmod(stat.S_IMODE(entry.mode))
        self._known = {path: self._known[path] for path, entry in content.items() if entry.is_file}

    def drop_others(self, contents: Iterable[Content]) -> None:
        """Delete all stored files except those of these contents and of the present one."""
        used = {entry.content for content in contents for entry in (content or {}).values()}
        used.update(content for _, content in self._known.values())
        for file in self._store.iterdir():
            if int(file.name) not in used:
                file.unlink()

    def _walk(self, below: str, within: Content = None) -> Iterator[tuple[str, os.stat_result]]:
        """Yield all entries below a folder with their attributes; with `within`, leave out the contents of
        folders that it does not have."""
        with os.scandir(self.root / below) as entries:
            ordered = sorted(entries, key=lambda entry: entry.name)
        for entry in ordered:
            path, status = f"{below}{entry.name}", entry.stat(follow_symlinks=False)
            yield path, status
            if stat.S_ISDIR(status.st_mode) and (within is None or _is_folder(within.get(path))):
                yield from self._walk(f"{path}/", within)

    def _entry(self, path: str, status: os.stat_result) -> Entry:
        if stat.S_ISLNK(status.st_mode):
            return Entry(status.st_mode, target=str((self.root / path).readlink()))
        if not stat.S_ISREG(status.st_mode):
            return Entry(status.st_mode)
        known = self._known.get(path)
        if known is None or known[0] != _marks(status):
            self._made += 1
            shutil.copy2(self.root / path, self._store / str(self._made))
            known = self._known[path] = (_marks(status), self._made)
        return Entry(status.st_mode, content=known[1])

    def _is(self, entry: Entry, path: str, status: os.stat_result) -> bool:
        """Return whether the existing file is already this entry; the permissions of folders are set
        afterwards."""
        if stat.S_IFMT(entry.mode) != stat.S_IFMT(status.st_mode):
            return False
        if entry.is_file:
            return self._known.get(path) == (_marks(status), entry.content)
        return entry.target is None or str((self.root / path).readlink()) == entry.target

    def _make(self, path: str, entry: Entry) -> None:
        target = self.root / path
        if entry.target is not None:
            target.symlink_to(entry.target)
        elif entry.content is None:
            target.mkdir()
            target.chmod(stat.S_IMODE(entry.mode))
        else:
            shutil.copy2(self._store / str(entry.content), target)
            self._known[path] = (_marks(target.lstat()), entry.content)

    def _discard(self, path: Path) -> None:
        if not path.is_dir() or path.is_symlink():
            path.unlink()
            return
        self._made += 1
        try:
            path.rename(self._discarded / f"{self.root.name}-{self._made}")
        except OSError as problem:
            if problem.errno != errno.EXDEV:
                raise
            shutil.rmtree(path)


def _is_folder(entry: Entry | None) -> bool:
    return entry is not None and stat.S_ISDIR(entry.mode)


def _marks(status: os.stat_result) -> Marks:
    return status.st_mode, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
