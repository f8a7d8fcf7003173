"""Whether the shared store can be used: what fails is left alone, and tried again where no request waits for it."""

import asyncio
import re
from collections.abc import Awaitable
from typing import Final

import obstore
import structlog
from obstore.exceptions import BaseError
from obstore.store import ObjectStore

from common.lifecycle import Degraded
from common.logs import ThrottledLog

log = structlog.get_logger(__name__)

READ: Final = "read"
WRITE: Final = "written"
#: What S3 says where the bucket is not there, which is not the same as an object that is not.
NO_BUCKET: Final = "NoSuchBucket"
UNREACHABLE: Final = (BaseError, OSError, TimeoutError)
_TRIAL_KEY: Final = "v1/trial"
_TRIAL: Final = b"An edge tries here whether it can use this store.\n"


class StoreHealth:
    """What of a store works. A trial, of at most `timeout` seconds for each, is written and read at the start, and
    every `pause` seconds while something does not work.
    """

    def __init__(self, store: ObjectStore, timeout: float, pause: float) -> None:
        self._store = store
        self._timeout = timeout
        self._pause = pause
        self._log = ThrottledLog(log)
        self._problems: dict[str, str] = {}
        self._doubts = asyncio.Event()

    @property
    def problem(self) -> str:
        """What does not work, and why; nothing while all does."""
        return ", ".join(f"it cannot be {what}: {why}" for what, why in sorted(self._problems.items()))

    @property
    def may_be_read(self) -> bool:
        """Whether a request may try. What cannot be written may be read all the same, but not the other way round."""
        return READ not in self._problems

    @property
    def may_be_written(self) -> bool:
        """Whether something may be written."""
        return not self._problems

    async def check(self) -> None:
        """Readiness; raises `Degraded` while something does not work."""
        if self._problems:
            raise Degraded(
                f"The shared store is left alone ({self.problem}); cold objects are fetched whole."
            )

    def failed(self, what: str, error: Exception) -> None:
        """Leaves the store alone until a trial has gone well."""
        reason = self._problems[what] = reason_of(error)
        self._doubts.set()
        self._log.warning(f"the shared store cannot be {what}", about=reason, reason=reason)

    def doubt(self) -> None:
        """Something may be wrong; the next trial tells."""
        self._doubts.set()

    async def watch(self) -> None:
        """Makes the trials. Never returns."""
        while True:
            await self._try(WRITE, self._write())
            await self._try(READ, self._read())
            await self._doubts.wait()
            await asyncio.sleep(self._pause)
            self._doubts.clear()

    async def _try(self, what: str, trial: Awaitable[None]) -> None:
        try:
            async with asyncio.timeout(self._timeout):
                await trial
        except (*UNREACHABLE, ValueError) as error:
            self.failed(what, error)
            return
        if self._problems.pop(what, None) is not None:
            log.info(f"the shared store can be {what} again")

    async def _write(self) -> None:
        await obstore.put_async(self._store, _TRIAL_KEY, _TRIAL)

    async def _read(self) -> None:
        try:
            found = await obstore.get_async(self._store, _TRIAL_KEY)
        except FileNotFoundError as error:
            if reason_of(error) == NO_BUCKET:
                raise
            return  # it could not be written, but one can ask for it
        if bytes(await found.bytes_async()) != _TRIAL:
            raise ValueError("It is somebody else who answers.")


def reason_of(error: Exception) -> str:
    """The code that S3 gives, or the kind of error. What else S3 says may hold parts of credentials."""
    code = re.search(r"<Code>(\w+)</Code>", str(error))
    return code[1] if code else type(error).__name__
