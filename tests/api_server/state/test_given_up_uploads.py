"""Uploads to S3 that end before all of them has come: nothing is left that would be paid for and that no listing
shows."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from api_server.state.object_store import open_objects
from api_server.state.objects import CHUNK
from common.concurrency import end
from tests.support.s3 import serving_bucket


async def test_an_upload_that_is_given_up_leaves_no_parts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    waiting = asyncio.Event()

    async def endless() -> AsyncIterator[bytes]:
        for _ in range(12):
            yield bytes(CHUNK)
        waiting.set()
        await asyncio.Event().wait()

    async with serving_bucket(monkeypatch) as (bucket, _):
        objects = open_objects("s3://bucket/forgelet", tmp_path)
        upload = asyncio.create_task(objects.put("projects/1/a", endless()))
        await waiting.wait()
        async with asyncio.timeout(20):
            while not any(bucket.parts.values()):
                await asyncio.sleep(0.01)
        await end(upload)
        assert upload.cancelled()
        assert (bucket.parts, bucket.objects) == ({}, {})
