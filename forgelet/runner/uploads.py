"""The files that a played job leaves, packed as a runner packs what the job's CI file names."""

import fnmatch
import gzip
import io
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs


@attrs.frozen(kw_only=True)
class Upload:
    """One file for `POST /jobs/:id/artifacts`."""

    filename: str
    content: bytes
    #: As `artifact_type`, `artifact_format` and `expire_in` are sent.
    said: Mapping[str, str]


#: Of a job whose CI file names no artifacts, but whose variables or rule do.
_ARCHIVE = {"artifact_type": "archive", "artifact_format": "zip", "paths": ["**"]}


def uploads(
    wanted: Sequence[Mapping[str, Any]] | None, files: Mapping[str, str], *, succeeds: bool
) -> Iterator[Upload]:
    """One for each item of `wanted`, which is `artifacts` of what a runner is told of the job, as far as `files` has
    some for it. Everything goes into an archive where the job names nothing."""
    for one in wanted or [_ARCHIVE]:
        when = one.get("when") or "on_success"
        if when != "always" and (when == "on_success") != succeeds:
            continue
        chosen = {path: text for path, text in files.items() if _is_wanted(one, path)}
        if chosen:
            yield _packed(one, chosen)


def _is_wanted(one: Mapping[str, Any], path: str) -> bool:
    def named(patterns: Sequence[str]) -> bool:
        return any(_fits(pattern, path) for pattern in patterns)

    wanted = one.get("untracked") or named(one.get("paths") or [])
    return bool(wanted) and not named(one.get("exclude") or [])


def _fits(pattern: str, path: str) -> bool:
    """A folder's name stands for all that is in it."""
    pattern = pattern.removeprefix("./").rstrip("/")
    return pattern in ("", ".", "**") or fnmatch.fnmatchcase(path, pattern) or path.startswith(f"{pattern}/")


def _packed(one: Mapping[str, Any], files: Mapping[str, str]) -> Upload:
    form = one.get("artifact_format") or "zip"
    said = {"artifact_type": one["artifact_type"], "artifact_format": form}
    if one.get("expire_in"):
        said["expire_in"] = str(one["expire_in"])
    name = str(one.get("name") or "artifacts")
    if form == "zip":
        return Upload(filename=f"{name}.zip", content=_zip(files), said=said)
    together = "".join(files.values()).encode()
    if form == "gzip":
        return Upload(filename=f"{name}.gz", content=gzip.compress(together, mtime=0), said=said)
    return Upload(filename=name, content=together, said=said)


def _zip(files: Mapping[str, str]) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, text in files.items():
            # of no time, so that the same files are the same archive
            archive.writestr(zipfile.ZipInfo(path), text)
    return packed.getvalue()
