"""Whether the origin can be asked, and whether it knows the edge by its storage token."""

import asyncio
import contextlib
import time
from collections.abc import Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, Literal
from urllib.parse import urlsplit

import structlog

from common.lifecycle import Degraded, Failed
from common.static_paths import NO_FILE
from storage_edge.cache.origin_response import NoAnswer, OriginError
from storage_edge.settings import Settings

if TYPE_CHECKING:
    from storage_edge.cache.origin import Origin

log = structlog.get_logger(__name__)

#: Seconds that the origin may take for what a look asks: readiness waits no longer than five.
LOOK_SECONDS: Final = 4.0
#: Seconds between two looks where the settings want none: whether they still do.
IDLE_SECONDS: Final = 5.0
#: Seconds between two lines about a problem that stays the same.
REMIND_SECONDS: Final = 3600.0
#: How the reasons begin that are about the origin's certificate.
UNTRUSTED: Final = "its certificate is not believed"
LIVENESS: Final = "/-/liveness"

_WHERE: Final = "Settings → Repository → External storage"
_NO_TOKEN = f"No storage token is set: set storage_token_file to a file with the token that the origin has in {_WHERE}."
_WRONG_TOKEN = f"The storage token is wrong: the origin has another one in {_WHERE}."
_ITSELF = "The origin {origin} leads back to this edge: set origin to where the service itself listens."
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
        self._was_right = False
        self._told_at = float("-inf")
        self._changed = asyncio.Event()
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
        """Readiness: asks, and raises `Failed` or `Degraded` where something is wrong. A wrong token is the latter once
        it was right: who changes it in the service does so for all edges, and what they have can still be served."""
        await self.look()
        if self.problem is not None:
            can_serve = self.reachable and (self.token != "wrong" or self._was_right)
            raise (Degraded if can_serve else Failed)(self.problem)

    async def look(self) -> None:
        """Asks the origin, once for all who want to know meanwhile."""
        wanted_at = time.monotonic()
        async with self._checking:
            if self._asked_at < wanted_at:
                self._asked_at, before = time.monotonic(), self.problem
                await self._look()
                self._tell(before)

    def forget(self) -> None:
        """The settings have changed: nothing is known any more, and `watch` looks again."""
        self._unreachable, self._refused, self.token = None, None, "unknown"
        self._changed.set()

    async def watch(self) -> None:
        """Asks every now and then, for those who only look at logs and metrics. Never returns."""
        while True:
            if self._settings.origin_check_interval:
                await self.look()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._settings.origin_check_interval or IDLE_SECONDS):
                    await self._changed.wait()
            self._changed.clear()

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
        now = time.monotonic()
        self._was_right |= self.token == "right"
        if self.problem == before and (before is None or now - self._told_at < REMIND_SECONDS):
            return
        self._told_at = now
        if self.problem is None:
            log.info("the origin can be used again")
        else:
            log.warning("the origin cannot be used as it should", problem=self.problem)

    async def _look(self) -> None:
        settings = self._settings
        origin = str(settings.origin_url).rstrip("/")
        until = time.monotonic() + min(settings.origin_timeout, LOOK_SECONDS)
        try:
            status, _ = await self._answer("GET", origin + LIVENESS, until)
            # A GitLab tells only those of its health whom it has been told of, and others 404.
            if status != 200 and not (settings.origin_flavour == "gitlab" and status < 500):
                self._unreachable = (
                    f"The origin answers {LIVENESS} with {status}: is that the service at {origin}?"
                )
                return
            self._unreachable = None
            path = settings.origin_check_path or (NO_FILE if settings.origin_flavour == "service" else "")
            if path and settings.storage_token:
                self._judge(path, *await self._answer("HEAD", origin + path, until))
        except OriginError as error:
            self._unreachable = _no_answer(origin, error)

    def _judge(self, path: str, status: int, headers: Mapping[str, str]) -> None:
        """A path that is there for everybody says more than one that is not; a redirect to sign in says nothing."""
        if status == 404 and path == NO_FILE:
            self.token, self._refused = "right", None
        else:
            self.saw(str(self._settings.origin_url).rstrip("/") + path, status, headers, is_anonymous=True)

    async def _answer(self, method: str, uri: str, until: float) -> tuple[int, Mapping[str, str]]:
        response = await self._origin.head(method, uri, None, {}, until - time.monotonic())
        response.release()
        if response.status == HTTPStatus.LOOP_DETECTED:
            raise OriginError(response.status, "It is this edge that answers.")
        return response.status, response.headers


def _no_answer(origin: str, error: OriginError) -> str:
    if not isinstance(error, NoAnswer):
        return _ITSELF.format(origin=origin)
    reason = error.details.get("reason", "")
    what = f"{str(error).removesuffix('.')}: {reason.rstrip('.')}." if reason else str(error)
    if reason.startswith(UNTRUSTED):
        return f"{what} Set origin_ca to whoever signs it, and origin_tls_name to a name that it bears."
    return f"{what} Does it run, and is {origin} where it is?"


def _is_back(uri: str, location: str) -> bool:
    """Whether a redirect goes to the same path at another host, where the origin thinks that the storage is."""
    try:
        asked, told = urlsplit(uri), urlsplit(location)
    except ValueError:
        return False
    return bool(told.netloc) and told.netloc != asked.netloc and told.path == asked.path
