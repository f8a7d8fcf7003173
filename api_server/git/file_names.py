"""Which paths a commit may have: those that git's own check of pushed objects (git-fsck(1)) lets pass everywhere.

A tree with one that it refuses could still be committed here, but nobody could push to that branch any more. The
check knows what file systems take for `.git`: HFS+ passes over some characters, NTFS over dots and spaces at the end
and all behind a colon, and has short names (`git~1`). Pure.
"""

import re

from pygit2.enums import FileMode

from api_server.git.errors import InvalidPathError

_LONGEST_PATH = 4096
#: What HFS+ passes over in names.
_IGNORED = dict.fromkeys([*range(0x200C, 0x2010), *range(0x202A, 0x202F), *range(0x206A, 0x2070), 0xFEFF])
#: git's reader of UTF-8 stops here.
_STOPS = re.compile("[\ufffe\uffff]")


def _taken_for(*names: str) -> re.Pattern[str]:
    return re.compile(rf"(?:{'|'.join(names)})[. ]*(?::.*)?", re.IGNORECASE | re.ASCII | re.DOTALL)


def _short_names(start: str) -> list[str]:
    """Those that NTFS makes of a name when the usual four are taken: six letters and digits in all, and a tilde."""
    return [f"{start[:kept]}~[1-9][0-9]{{{6 - kept}}}" for kept in range(7)]


_NTFS_GIT = _taken_for(r"\.git", "git~1")
#: Files that git reads for itself, by what NTFS may call them.
_NTFS_READ = {
    ".gitmodules": _taken_for(r"\.gitmodules", "gitmod~[1-4]", *_short_names("gi7eba")),
    ".gitattributes": _taken_for(r"\.gitattributes", "gitatt~[1-4]", *_short_names("gi7d29")),
}
#: What they may be. A link of the second name is only passed over.
_MAY_BE = {
    ".gitmodules": {FileMode.BLOB, FileMode.BLOB_EXECUTABLE},
    ".gitattributes": {FileMode.BLOB, FileMode.BLOB_EXECUTABLE, FileMode.LINK},
}


def check_path(path: str, mode: int) -> None:
    """Raises `InvalidPathError` unless a file of this mode (a number of git's) may stand at `path` ("a/b")."""
    parts = path.split("/")
    if "\0" in path or "\\" in path or any(part in ("", ".", "..") for part in parts):
        raise InvalidPathError(f"{path!r} is not a valid path for a file.")
    if len(path.encode(errors="replace")) > _LONGEST_PATH:
        raise InvalidPathError(f"A path has at most {_LONGEST_PATH} bytes.")
    for part in parts:
        if _is_git(part):
            raise InvalidPathError(
                f"{path!r} is not a valid path for a file: {part!r} may be taken for .git."
            )
    for part, kind in zip(parts, [FileMode.TREE] * (len(parts) - 1) + [mode], strict=True):
        name = read_by_git(part)
        if name and kind not in _MAY_BE[name]:
            raise InvalidPathError(f"{path!r} is not a valid path for a file: {name} must be a regular file.")


def read_by_git(name: str) -> str | None:
    """`.gitmodules` or `.gitattributes`, where a file called `name` (without folders) may be taken for it."""
    hfs = _on_hfs(name)
    for read, ntfs in _NTFS_READ.items():
        if hfs == read or ntfs.fullmatch(name):
            return read
    return None


def _is_git(name: str) -> bool:
    return _on_hfs(name) == ".git" or _NTFS_GIT.fullmatch(name) is not None


def _on_hfs(name: str) -> str:
    seen = _STOPS.split(name, maxsplit=1)[0].translate(_IGNORED)
    return seen.lower() if seen.isascii() else seen
