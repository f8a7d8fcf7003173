"""Whether the origin can be asked, and whether it knows the edge by its storage token."""

import asyncio
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Literal
from urllib.parse import urlsplit

import structlog

from common.operations import Degraded, Failed
from storage_edge.cache.origin_response import OriginError
from storage_edge.settings import Settings

if TYPE_CHECKING:
    from storage_edge.cache.origin import Origin

log = structlog.get_logger(__name__)

#: Seconds that the origin may take to say that it lives.
CHECK_SECONDS: Final = 5.0
LIVENESS: Final = "/-/liveness"
#: No file of this service, which judges the storage's token before it looks for one: 404 says that it is right.
NO_FILE: Final = "/forgelet/-/raw/HEAD/is-the-storage-token-right"

_WHERE: Final = "Settings → Repository → External storage"
_NO_TOKEN = f"No storage token is set: set storage_token_file to a file with the token that the origin has in {_WHERE}."
_WRONG_TOKEN = f"The storage token is wrong: the origin has another one in {_WHERE}."
_SENT_BACK = (
    "The origin sends the edge to the external storage, as it does with users: it does not see the edge's storage"
    " token. Set storage_token_file, and origin_flavour to what the origin is."
)


class OriginHealth:
    """What is known of the origin. `problem` is one sentence for operators, None while nothing is known to be wrong."""

    def __init__(self, origin: "Origin", settings: Settings) -> None:
        self._origin = origin
        self._settings = settings
        self._asked_at = float("-inf")
        self._checking = asyncio.Lock()
        self._unreachable: str | None = None
        self._refused: str | None = None
        self.token: Literal["right", "wrong", "unknown"] = "unknown"

    @property
    def reachable(self) -> bool:
        """Whether it answered when it was asked last."""
        return self._unreachable is None

    @property
    def problem(self) -> str | None:
        """What is wrong, and what to do about it."""
        if self._unreachable or self._refused:
            return self._unreachable or self._refused
        return None if self._settings.storage_token else _NO_TOKEN

    async def check(self) -> None:
        """Readiness: asks, and raises `Failed` or `Degraded` where something is wrong."""
        await self.look()
        if self.problem is not None:
            raise (Degraded if self.reachable and self.token != "wrong" else Failed)(self.problem)

    async def look(self) -> None:
        """Asks the origin, once for all who want to know meanwhile."""
        wanted_at = time.monotonic()
        async with self._checking:
            if self._asked_at < wanted_at:
                self._asked_at, before = time.monotonic(), self.problem
                await self._look()
                self._tell(before)

    def forget(self) -> None:
        """The settings have changed: nothing is known any more."""
        self._unreachable, self._refused, self.token = None, None, "unknown"

    async def watch(self) -> None:
        """Asks every now and then, for those who only look at logs and metrics. Never returns."""
        while True:
            if self._settings.origin_check_interval:
                await self.look()
            await asyncio.sleep(self._settings.origin_check_interval or CHECK_SECONDS)

    def saw(self, uri: str, status: int, headers: Mapping[str, str], *, is_anonymous: bool) -> None:
        """What the origin has answered to the request for an object, where that tells of the token."""
        if status in (200, 304) and self._settings.storage_token:
            self.token, self._refused = "right", None
        elif 300 <= status < 400 and _is_back(uri, headers.get("Location", "")):
            self._is_refused(_SENT_BACK)
        elif status == 403 and is_anonymous and self._settings.storage_token:
            self._is_refused(_WRONG_TOKEN)

    def _is_refused(self, why: str) -> None:
        before = self.problem
        self.token, self._refused = "wrong", why
        self._tell(before)

    def _tell(self, before: str | None) -> None:
        if self.problem == before:
            return
        if self.problem is None:
            log.info("the origin can be used again")
        else:
            log.warning("the origin cannot be used as it should", problem=self.problem)

    async def _look(self) -> None:
        settings = self._settings
        origin = str(settings.origin_url).rstrip("/")
        try:
            status, _ = await self._answer("GET", origin + LIVENESS)
            # A GitLab tells only those of its health whom it has been told of, and others 404.
            if status != 200 and not (settings.origin_flavour == "gitlab" and status < 500):
                self._unreachable = (
                    f"The origin answers {LIVENESS} with {status}: is that the service at {origin}?"
                )
                return
            self._unreachable = None
            path = settings.origin_check_path or (NO_FILE if settings.origin_flavour == "service" else "")
            if path and settings.storage_token:
                self._judge(path, *await self._answer("HEAD", origin + path))
        except OriginError as error:
            self._unreachable = f"{error} Does it run, and is {origin} where it is?"

    def _judge(self, path: str, status: int, headers: Mapping[str, str]) -> None:
        """A path that is there for everybody says more than one that is not; a redirect to sign in says nothing."""
        if status == 404 and path == NO_FILE:
            self.token, self._refused = "right", None
        else:
            self.saw(str(self._settings.origin_url).rstrip("/") + path, status, headers, is_anonymous=True)

    async def _answer(self, method: str, uri: str) -> tuple[int, Mapping[str, str]]:
        seconds = min(self._settings.origin_timeout, CHECK_SECONDS)
        response = await self._origin.head(method, uri, None, {}, seconds)
        response.release()
        return response.status, response.headers


def _is_back(uri: str, location: str) -> bool:
    """Whether a redirect goes to the same path at another host, where the origin thinks that the storage is."""
    try:
        asked, told = urlsplit(uri), urlsplit(location)
    except ValueError:
        return False
    return bool(told.netloc) and told.netloc != asked.netloc and told.path == asked.path
