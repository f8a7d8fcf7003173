"""Files that configurations include from elsewhere than their own repository and remote URLs: files of other
projects, components by version, artifacts of the parent pipeline, and the operator's templates."""

import asyncio
import functools
import re
from collections.abc import Callable, Iterable
from pathlib import Path

import attrs

from api_server.ci.config import context
from api_server.ci.config.context import OtherProject, Version
from api_server.ci.config.errors import CiConfigError
from api_server.ci.config.yaml_text import MAX_BYTES, too_big
from api_server.ci.pipelines import creation_queries, job_queries, repository
from api_server.ci.pipelines.creation_queries import Subject
from api_server.git import references
from api_server.git.errors import RepositoryMissingError
from api_server.git.ref_names import TAGS
from api_server.git.repositories import Repositories, Repository
from api_server.namespaces import project_queries
from api_server.namespaces.resources import Project
from api_server.state.database import Database
from api_server.zip_files import DamagedError, ZipFiles

#: Number of a project's newest releases that are searched for versions.
MAX_RELEASES = 10_000
LATEST = "~latest"
_PARTIAL = re.compile(r"\d{1,9}(?:\.\d{1,9})?", re.ASCII)
_FULL_SHA = re.compile(r"[0-9a-fA-F]{40}")
_SEMANTIC = re.compile(r"v?(\d{1,9})\.(\d{1,9})\.(\d{1,9})(?P<prerelease>-[\w.-]+)?(?:\+[\w.-]+)?", re.ASCII)


def newest(tags: Iterable[str], version: str) -> str | None:
    """Return the tag with the highest semantic version that matches `1.2`, `1` or `~latest`, or None.

    Prereleases, such as `1.0.1-rc`, do not match.
    """
    prefix = () if version == LATEST else tuple(map(int, version.split(".")))
    best = None
    for tag in tags:
        match = _SEMANTIC.fullmatch(tag)
        if match is None or match["prerelease"]:
            continue
        numbers = tuple(int(number) for number in match.groups()[:3])
        if numbers[: len(prefix)] == prefix and (best is None or numbers > best[0]):
            best = numbers, tag
    return best[1] if best is not None else None


@attrs.frozen(eq=False)
class _OtherProject:
    """A readable project, for use in a thread."""

    project: Project
    database: Database
    repositories: Repositories
    loop: asyncio.AbstractEventLoop
    #: By id: one object for each commit, however it was named.
    commits: dict[str, context.Repository] = attrs.field(factory=dict)

    @functools.cached_property
    def opened(self) -> Repository | None:
        try:
            return self.repositories.open(self.project.id)
        except RepositoryMissingError:
            return None

    @functools.cached_property
    def releases(self) -> dict[str, str]:
        """The commits of the releases by tag."""
        query = creation_queries.release_commits(self.database, self.project.id, MAX_RELEASES)
        releases = asyncio.run_coroutine_threadsafe(query, self.loop).result()
        return {release.tag: release.sha for release in releases}

    @functools.cached_property
    def tags(self) -> list[str]:
        return references.tag_names(self.opened) if self.opened is not None else []

    def at(self, ref: str | None) -> context.Repository | None:
        commit = self._commit(ref or "HEAD")
        return None if commit is None else self._repository(commit)

    def version(self, version: str) -> Version | None:
        """Return the target of a version: a commit, the newest match of a partial version, a release, a tag,
        or a branch.

        Versions are those of the releases, or those of the tags if no release has one.
        """
        if _FULL_SHA.fullmatch(version):
            return self._version(self._commit(version))
        if version == LATEST or _PARTIAL.fullmatch(version):
            semantic = self._newest(version)
            if semantic is not None:
                return self._version(self._released(semantic), semantic)
        tagged = self._released(version)
        if tagged is not None:
            return self._version(tagged, version if _SEMANTIC.fullmatch(version) else None)
        return self._version(self._commit(version))

    def _newest(self, version: str) -> str | None:
        if any(map(_SEMANTIC.fullmatch, self.releases)):
            return newest(self.releases, version)
        return newest(self.tags, version)

    def _released(self, tag: str) -> str | None:
        """Return the commit of the release of a tag, or of the tag itself if it has no release."""
        return (self._commit(self.releases[tag]) if tag in self.releases else None) or self._commit(
            TAGS + tag
        )

    def _commit(self, ref: str) -> str | None:
        resolved = references.resolve(self.opened, ref) if self.opened is not None else None
        return None if resolved is None else resolved.commit

    def _version(self, commit: str | None, semantic: str | None = None) -> Version | None:
        return None if commit is None else Version(repository=self._repository(commit), semantic=semantic)

    def _repository(self, commit: str) -> context.Repository:
        if commit not in self.commits:
            opened = self.repositories.open(self.project.id)
            self.commits[commit] = repository.for_planning(opened, commit, self.project.full_path, self.loop)
        return self.commits[commit]


def other_projects(
    database: Database, repositories: Repositories, subject: Subject
) -> Callable[[str, bool], OtherProject | None]:
    """Return `Context.project` for a pipeline of this subject's user, to be called in threads."""
    loop = asyncio.get_running_loop()

    @functools.cache
    def find(path: str, public: bool) -> OtherProject | None:
        query = project_queries.find_project(
            database,
            project_id=None,
            path=path,
            user_id=None if public or not subject.active else subject.user_id,
            admin=subject.active and subject.admin and not public,
            job_project_id=None,
        )
        project = asyncio.run_coroutine_threadsafe(query, loop).result()
        if project is None or not project.reads_repository:
            return None
        other_project = _OtherProject(project, database, repositories, loop)
        return OtherProject(at=other_project.at, version=other_project.version)

    return find


def artifacts_of_parent(
    database: Database, zip_files: ZipFiles, bridge_id: int | None
) -> Callable[[str, str], str]:
    """Return `Context.artifact` for the pipeline that a bridge starts, to be called in threads."""
    if bridge_id is None:
        return context.no_artifact
    loop = asyncio.get_running_loop()

    async def read(job: str, path: str) -> str:
        archive = await job_queries.archive_beside(database, bridge_id, job)
        if archive is None:
            raise CiConfigError(f"Job `{job}` not found in parent pipeline or does not have artifacts!")
        try:
            member = await zip_files.find(archive.object_key, path)
            if member is not None and member.size > MAX_BYTES:
                raise CiConfigError(
                    f"The file `{path}` in job `{job}` is too large: {_mebibytes(member.size)} "
                    f"exceeds maximum of {_mebibytes(MAX_BYTES)}"
                )
            if member is not None:
                chunks = zip_files.unpack(archive.object_key, archive.size, member)
                return b"".join([chunk async for chunk in chunks]).decode(errors="replace")
        except (FileNotFoundError, DamagedError):  # removed a moment ago, or damaged
            pass
        raise CiConfigError(f"Path `{path}` does not exist inside the `{job}` artifacts archive!")

    @functools.cache
    def artifact(job: str, path: str) -> str:
        return asyncio.run_coroutine_threadsafe(read(job, path), loop).result()

    return artifact


def _mebibytes(size: int) -> str:
    return f"{round(size / 2**20, 2):g} MiB"


def templates(folder: Path | None) -> Callable[[str], str | None]:
    """Return `Context.template` for the operator's folder: it reads regular files inside it, and no links
    that lead out of it."""
    if folder is None:
        return context.no_templates

    def read(path: str) -> str | None:
        root = folder.resolve()
        try:
            file = (root / path).resolve(strict=True)
            if not file.is_relative_to(root) or not file.is_file():
                return None
            with file.open("rb") as opened:
                content = opened.read(MAX_BYTES + 1)
        except (OSError, ValueError, RuntimeError):  # including a path with a NUL, and links in a cycle
            return None
        if len(content) > MAX_BYTES:
            raise CiConfigError(too_big(file.stat().st_size, MAX_BYTES))
        return content.decode(errors="replace")

    return read
