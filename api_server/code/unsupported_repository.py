"""Parameters of repositories that GitLab knows and this service has no use for (`web/unsupported.py`)."""

import attrs

from api_server.web.unsupported import REFUSED


@attrs.frozen(kw_only=True)
class OfBranchLists:
    """Filters of lists of branches."""

    regex: str | None = None


@attrs.frozen(kw_only=True)
class OfRawFiles:
    """Forms of a file's content."""

    lfs: bool | None = None


@attrs.frozen(kw_only=True)
class OfChangedFiles:
    """Where one file is written or removed: a new branch begins in its own project."""

    start_project: str | None = attrs.field(default=None, metadata=REFUSED)


@attrs.frozen(kw_only=True)
class OfCommits:
    """Where several files are committed: to the end of a branch, or of a new one that begins at another's end."""

    start_project: str | None = attrs.field(default=None, metadata=REFUSED)
    start_sha: str | None = attrs.field(default=None, metadata=REFUSED)
    force: bool | None = attrs.field(default=None, metadata=REFUSED)


@attrs.frozen(kw_only=True)
class OfCommitLists:
    """Forms of lists."""

    trailers: bool | None = None


@attrs.frozen(kw_only=True)
class OfDiffs:
    """Forms of differences."""

    unidiff: bool | None = None


@attrs.frozen(kw_only=True)
class OfComparisons(OfDiffs):
    """Where two commits are compared. There are no forks."""

    from_project_id: int | None = attrs.field(default=None, metadata=REFUSED)
