"""A file at a ref, and what answers tell of it beside its bytes."""

import asyncio
import hashlib
import re
from contextlib import suppress
from typing import Any

import attrs
from aiohttp import hdrs, web
from cachetools import LRUCache

from api_server.code.reading import reading
from api_server.git.commits import History, history
from api_server.git.repositories import Repository
from api_server.git.trees import Entry
from api_server.web.answers import attachment
from api_server.web.errors import ApiError
from common.concurrency import TooBusy

#: As the API's other answers.
_PRIVATE: dict[str, str] = {hdrs.CACHE_CONTROL: "max-age=0, private, must-revalidate"}
#: For so long a file waits for its history.
_HISTORY_SECONDS = 3
#: The last commit up to a commit that changed a path, which stays what it is.
LAST_COMMITS: web.AppKey[LRUCache[tuple[str, str], str]] = web.AppKey("last_commits", LRUCache)
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def setup(app: web.Application) -> None:
    app[LAST_COMMITS] = LRUCache(maxsize=10_000)


@attrs.frozen
class FoundFile:
    """`ref` as the caller wrote it; `commit` is the full SHA that it names, `last_commit` the newest commit up to there
    that changed the file."""

    entry: Entry
    ref: str
    commit: str
    last_commit: str | None = None

    @property
    def values(self) -> dict[str, Any]:
        """GitLab's entity without the content; its digest has only its place here."""
        return {
            "file_name": self.entry.path.rpartition("/")[2],
            "file_path": self.entry.path,
            "size": self.entry.size,
            "encoding": "base64",
            "content_sha256": "",
            "ref": self.ref,
            "blob_id": self.entry.id,
            "commit_id": self.commit,
            "last_commit_id": self.last_commit,
            "execute_filemode": self.entry.kind == "executable",
        }

    @property
    def headers(self) -> dict[str, str]:
        """Of the entity; its tag is known without the content."""
        known = repr((self.commit, self.entry.id, self.entry.kind, self.ref, self.entry.path))
        tag = hashlib.sha256(known.encode(errors="replace")).hexdigest()[:40]
        return {hdrs.CONTENT_TYPE: "application/json", hdrs.ETAG: f'"{tag}"'} | _PRIVATE | self._fields

    @property
    def raw_headers(self) -> dict[str, str]:
        """Of the bytes alone, which are saved and never shown."""
        headers: dict[str, str] = {
            hdrs.CONTENT_TYPE: "application/octet-stream",
            hdrs.CONTENT_DISPOSITION: attachment(self.entry.path.rpartition("/")[2]),
            hdrs.ETAG: f'"{self.entry.id}"',
            "X-Content-Type-Options": "nosniff",
        }
        return headers | _PRIVATE | self._fields

    @property
    def _fields(self) -> dict[str, str]:
        """The entity's values in header fields, as GitLab names them; but the digest, for which the file would have to
        be read."""
        return {
            f"X-Gitlab-{name.replace('_', '-').title()}": _CONTROL.sub("_", _text(value))
            for name, value in self.values.items()
            if name != "content_sha256" and value is not None
        }

    def require_size(self, most: int) -> None:
        """Raises 413 for a file that is too large for JSON."""
        if (self.entry.size or 0) > most:
            raise ApiError(
                413,
                {
                    "message": f"413 Request Entity Too Large - files beyond {most} bytes are read at "
                    "/projects/:id/repository/files/:file_path/raw"
                },
            )

    async def with_history(self, request: web.Request, repository: Repository) -> "FoundFile":
        """With its last commit, unless that takes too long to find."""
        known = request.config_dict[LAST_COMMITS]
        place = self.commit, self.entry.path
        if place not in known:
            with suppress(ApiError, TimeoutError, TooBusy):
                async with asyncio.timeout(_HISTORY_SECONDS), reading(request):
                    wanted = History(start=self.commit, path=self.entry.path)
                    (known[place],) = await history(repository, wanted, skip=0, limit=1)
        return attrs.evolve(self, last_commit=known.get(place))


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
