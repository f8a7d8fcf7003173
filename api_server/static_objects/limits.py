"""How often users may ask for static objects themselves; the external storage is not counted."""

from aiohttp import web

from api_server.namespaces.resources import Project
from api_server.settings import Settings
from api_server.static_objects.access import Reader
from api_server.web.rate_limits import RateLimiter
from common.static_paths import Kind, StaticPath


class Limits:
    """Raw files per project and path (whatever the ref), archives per project and user, or for all strangers."""

    def __init__(self, settings: Settings) -> None:
        self._raw = RateLimiter("raw", lambda: settings.raw_rate_limit)
        self._archives = RateLimiter("archives", lambda: settings.archive_rate_limit)
        self._anonymous_archives = RateLimiter(
            "anonymous archives", lambda: settings.anonymous_archive_rate_limit
        )

    def forget(self) -> None:
        """Nobody has asked yet."""
        for limiter in (self._raw, self._archives, self._anonymous_archives):
            limiter.forget()

    def check(self, path: StaticPath, project: Project, reader: Reader) -> None:
        """Counts the request; raises 429 beyond the limit."""
        if path.kind is Kind.RAW:
            wait = self._raw.retry_after((project.id, path.rest.partition("/")[2]))
        else:
            wait = self.archive(reader.id)
        if wait:
            raise web.HTTPTooManyRequests(
                text="This endpoint has been requested too many times. Try again later.\n",
                headers={"Retry-After": str(wait)},
            )

    def archive(self, user_id: int | None) -> int:
        """Counts an archive for the user, or for all strangers: the seconds to wait, 0 within the limit."""
        if user_id is None:
            return self._anonymous_archives.retry_after("everybody")
        return self._archives.retry_after(user_id)


LIMITS = web.AppKey("static_object_limits", Limits)
