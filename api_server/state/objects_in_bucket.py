"""The object store in S3, through obstore."""

import asyncio
import datetime
import functools
import io
import os
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from contextlib import suppress
from typing import IO

import obstore
from obstore.exceptions import BaseError
from obstore.store import ObjectStore, from_url

from api_server.state.errors import Unavailable
from api_server.state.objects import CHUNK, LISTED_TOGETHER, Entry, Objects, OpenedObject, store_failures
from common.concurrency import ended

#: Parts of one object that are uploaded at a time; S3 requires parts of at least 5 MiB.
_PART = 5 * CHUNK
_PARTS_AT_A_TIME = 2
#: A key at which nothing is ever stored. Reading it costs a twelfth of a listing; unlike HEAD, it says what
#: is wrong.
_ABSENT_KEY = "readiness"
_failures = functools.partial(store_failures, BaseError)
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")


class ObjectsInBucket(Objects):
    """Objects in a bucket. S3 ends long responses and a reader may be slow: a download that breaks off is
    continued from the bytes received so far."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    async def put(self, key: str, chunks: AsyncIterator[bytes]) -> None:
        source = _Source(chunks)
        writing = asyncio.ensure_future(self._put(key, source))
        try:
            with _failures():
                await asyncio.shield(writing)
            return
        except asyncio.CancelledError:
            source.give_up()
            with suppress(Exception):
                await ended(writing)
            raise
        except (Unavailable, FileNotFoundError) as problem:
            cause = problem.__cause__ or problem
        if source.problem is not None:
            raise source.problem
        raise Unavailable("the object store") from cause

    async def _put(self, key: str, source: "_Source") -> None:
        """Upload an object. If the source fails, obstore removes the uploaded parts; if the task is
        cancelled, it does not."""
        await obstore.put_async(
            self._store,
            key,
            source.chunks(),
            use_multipart=True,
            chunk_size=_PART,
            max_concurrency=_PARTS_AT_A_TIME,
        )

    async def read(self, key: str, start: int, end: int) -> AsyncGenerator[bytes, None]:
        position = start
        while position < end:
            start_position = position
            try:
                with _failures():
                    answer = await obstore.get_async(self._store, key, options={"range": (position, end)})
                    async for chunk in answer.stream(min_chunk_size=64 * 1024):
                        position += len(chunk)
                        yield bytes(chunk)
            except FileNotFoundError as problem:
                if start_position == start:
                    raise
                raise Unavailable("the object store") from problem
            except Unavailable:
                if position == start_position:
                    raise
            else:
                if position == start_position:
                    raise Unavailable("the object store") from EOFError(f"{key} is too short")

    def open(self, key: str) -> IO[bytes]:
        with _failures():
            try:
                reader = obstore.open_reader(self._store, key, buffer_size=CHUNK)
            except FileNotFoundError:
                obstore.get(self._store, key)  # unlike HEAD, this answer reports a missing bucket
                raise
        return io.BufferedReader(OpenedObject(reader, BaseError))

    async def size(self, key: str) -> int:
        with _failures():
            try:
                return int((await obstore.head_async(self._store, key))["size"])
            except FileNotFoundError:
                await obstore.get_async(self._store, key)  # as in `open`
                raise

    async def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            with suppress(FileNotFoundError), _failures():
                await obstore.delete_async(self._store, key)

    async def batches(self, prefix: str) -> AsyncIterator[list[Entry]]:
        with _failures():
            async for batch in obstore.list(self._store, prefix=prefix, chunk_size=LISTED_TOGETHER):
                yield [Entry(meta["path"], meta["size"], meta["last_modified"]) for meta in batch]

    async def _try(self) -> None:
        with suppress(FileNotFoundError), _failures():
            await obstore.get_async(self._store, _ABSENT_KEY)


class _Source:
    """Chunks on their way into the store. `problem` remembers an error of the source, for which the store is
    not to blame."""

    def __init__(self, chunks: AsyncIterator[bytes]) -> None:
        self._chunks = chunks
        self._next: asyncio.Future[bytes | None] | None = None
        self._is_given_up = False
        self.problem: Exception | None = None

    def give_up(self) -> None:
        """Fail instead of waiting for the next chunk."""
        self._is_given_up = True
        if self._next is not None:
            self._next.cancel()

    async def chunks(self) -> AsyncIterator[bytes]:
        try:
            while (chunk := await self._next_chunk()) is not None:
                yield chunk
        except Exception as problem:
            self.problem = problem
            raise

    async def _next_chunk(self) -> bytes | None:
        if not self._is_given_up:
            self._next = asyncio.ensure_future(_next(self._chunks))
            try:
                await asyncio.wait({self._next})
            finally:
                self._next.cancel()
            if not self._next.cancelled():
                return self._next.result()
        raise InterruptedError("The upload was given up.")


async def _next(chunks: AsyncIterator[bytes]) -> bytes | None:
    return await anext(chunks, None)


def open_bucket(url: str, timeout: float) -> Objects:
    """Open the store at `s3://bucket/prefix`. A request takes at most `timeout` seconds, including
    repetitions."""
    endpoint = next(filter(None, map(os.environ.get, _ENDPOINTS)), "")
    half = datetime.timedelta(seconds=timeout / 2)
    store = from_url(
        url,
        # only an endpoint that begins with http:// is used without TLS
        client_options={
            "allow_http": endpoint.startswith("http://"),
            "timeout": half,
            "connect_timeout": half,
        },
        retry_config={"max_retries": 5, "retry_timeout": half},
    )
    return ObjectsInBucket(store)
