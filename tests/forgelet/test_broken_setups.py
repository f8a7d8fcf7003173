"""Set-ups that are broken in one way each: `doctor` says that and nothing else, in one line with the remedy."""

import asyncio
import contextlib
import json
import os
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import attrs
import pytest

from api_server.state.errors import Unavailable
from common.serving import serving
from forgelet.doctor import services
from forgelet.doctor.examination import LONGEST, examine
from forgelet.local.embedded_postgres import Cluster
from storage_edge import app
from storage_edge.app import served
from storage_edge.settings import Settings as EdgeSettings
from tests.forgelet.broken_setups import BROKEN, Setup
from tests.storage_edge.disks import small_disk
from tests.support.forge import running_forge
from tests.support.mailbox import running_mailbox
from tests.support.mistakes import furnish
from tests.support.ports import free_port
from tests.support.preloaded import Ended, Programs, preloaded
from tests.support.s3 import at, serving_bucket

STORAGE_TOKEN, PURGE_TOKEN = "storage-token-of-tests", "purge-token-of-tests"
#: How much room the disk of this machine has is its own affair.
ROOM = "are free on the disk of"
SECRETS = (STORAGE_TOKEN, PURGE_TOKEN, "correct horse", "hunter2", "made-up")


@pytest.fixture(scope="module")
def programs() -> Iterator[Programs]:
    with preloaded(
        "forgelet.command_line",
        "forgelet.doctor.examination",
        "forgelet.commands.outgoing",
        "api_server.__main__",
    ) as programs:
        yield programs


@pytest.fixture(scope="module")
async def sound(
    new_database: Callable[[], str], postgres: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Setup]:
    """A service and an edge that run, with mail and a store in S3."""
    folder, port = tmp_path_factory.mktemp("sound"), free_port()
    edge_url, url = f"http://127.0.0.1:{port}", new_database()
    async with contextlib.AsyncExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        bucket, _ = await stack.enter_async_context(serving_bucket(patch))
        mailbox = await stack.enter_async_context(running_mailbox(folder))
        patch.setenv("SSL_CERT_FILE", str(folder / "mailbox.pem"))
        told: dict[str, Any] = {
            "edge_urls": [edge_url],
            "edge_purge_token": PURGE_TOKEN,
            "smtp_url": mailbox.url,
            "object_store_url": "s3://bucket",
        }
        forge = await stack.enter_async_context(running_forge(url, folder / "service", **told))
        of_edge = {
            "origin": forge.base,
            "storage_token": STORAGE_TOKEN,
            "purge_token": PURGE_TOKEN,
            "data_dir": folder / "edge",
            "port": port,
            "negative_seconds": 600,
        }
        chosen = EdgeSettings(**of_edge)  # type: ignore[arg-type]
        await stack.enter_async_context(serving(served(app.create_app(chosen), chosen)))
        await forge.root.put(
            "/application/settings",
            {
                "static_objects_external_storage_url": edge_url,
                "static_objects_external_storage_auth_token": STORAGE_TOKEN,
            },
        )
        settings = told | {
            "edge_urls": edge_url,
            "database_url": url,
            "data_dir": folder / "service",
            "port": urlsplit(forge.base).port,
        }
        passed = {name: os.environ[name] for name in os.environ if name.startswith(("AWS_", "SSL_", "PATH"))}
        environment = passed | {
            f"FORGELET_API_{name.upper()}": str(value) for name, value in settings.items()
        }
        environment |= {f"FORGELET_EDGE_{name.upper()}": str(value) for name, value in of_edge.items()}
        yield Setup(environment, mailbox, bucket, new_database, postgres, folder)


@pytest.fixture
def setup(sound: Setup, tmp_path: Path) -> Iterator[Setup]:
    furnish(tmp_path)
    yield attrs.evolve(sound, environment=dict(sound.environment), place=tmp_path)
    sound.bucket.failure = None


async def doctor(setup: Setup, programs: Programs, *arguments: str) -> Ended:
    """In a process of its own, while what it looks at is served by this one."""
    return await asyncio.to_thread(
        programs.run,
        "forgelet",
        ["doctor", *arguments],
        {"HOME": str(setup.place), **setup.environment},
        folder=setup.place,
        unprivileged=setup.unprivileged,
    )


async def test_of_a_service_that_works_nothing_is_said(setup: Setup, programs: Programs) -> None:
    ended = await doctor(setup, programs)
    assert ended.errors == ""
    lines = [line for line in ended.output.splitlines() if ROOM not in line]
    assert [line for line in lines if not line.startswith("ok ")] == []
    assert len(ended.output.splitlines()) >= 15
    assert ended.status == 0
    assert not any(key.startswith("projects/0/") for key in setup.bucket.objects)


@pytest.mark.parametrize("name", BROKEN)
async def test_what_is_broken_is_one_line_with_its_remedy(
    name: str, setup: Setup, programs: Programs
) -> None:
    broken = BROKEN[name]
    broken.break_(setup)
    ended = await doctor(setup, programs, "--json", "--quiet")
    found = json.loads(ended.output)
    # What runs may say the same of itself.
    said = [
        one
        for one in found["findings"]
        if not (one["check"] == "work" and one["what"].startswith(("store ", "edge ")))
        and "says of its" not in one["what"]
        and ROOM not in one["what"]
    ]
    assert len(said) == 1, found["findings"]
    finding = said[0]
    assert broken.says in finding["what"]
    assert broken.remedy in finding["remedy"]
    assert finding["state"] == broken.state
    assert ended.status == int("failed" in [one["state"] for one in found["findings"]])
    assert not [secret for secret in SECRETS if secret in ended.output + ended.errors]
    if broken.start is not None:
        ended = await asyncio.to_thread(
            programs.run,
            "api_server",
            ["--port", str(free_port())],
            setup.environment,
            folder=setup.place,
        )
        assert ended.status == 2
        assert ended.errors.startswith("Error: ")
        assert ended.errors.endswith(f"{broken.start}\n")
        assert ended.errors.count("\n") == 1


async def test_a_folder_that_is_no_forgelets_is_a_mistake(setup: Setup, programs: Programs) -> None:
    ended = await doctor(setup, programs, "--data-dir", str(setup.place / "empty"))
    assert (ended.status, ended.output) == (2, "")
    assert ended.errors.endswith("is no folder of `forgelet up`: name another by --data-dir\n")


async def test_a_full_disk_is_seen(setup: Setup, programs: Programs) -> None:
    with small_disk(setup.place / "disk", 2) as disk:
        disk.fill()
        setup.set("data_dir", disk.path)
        setup.set("FORGELET_EDGE_DATA_DIR", disk.path)
        ended = await doctor(setup, programs, "--quiet")
    full = (
        f"the data directory cannot be written: No space left on device: {disk.path} — make room on its disk"
    )
    assert full in ended.output
    assert full.replace("the data", "the edge's") in ended.output
    assert ended.status == 1


async def test_a_folder_that_this_account_may_not_write_is_seen(setup: Setup, programs: Programs) -> None:
    setup.set("data_dir", setup.place / "empty")
    setup.unprivileged = True
    ended = await doctor(setup, programs, "--quiet")
    lines = [line for line in ended.output.splitlines() if "data directory" in line]
    assert "Permission denied" in lines[0]
    assert "enter and write to" in lines[0]
    assert ended.status == 1


async def test_what_swallows_everything_is_not_waited_for_without_end(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as swallowing:  # takes connections, and says nothing
        place = f"127.0.0.1:{swallowing.getsockname()[1]}"
        setup.set("database_url", f"postgresql://forgelet:hunter2@{place}/none")
        setup.set("smtp_url", f"smtp://{place}")
        setup.set("edge_urls", f"http://{place}")
        setup.set("FORGELET_EDGE_SHARED_STORE_URL", "s3://bucket")
        at(monkeypatch, f"http://{place}")
        begun = time.monotonic()
        examined = await examine(setup.environment, longest=0.3)
    assert time.monotonic() - begun < LONGEST
    assert examined.hangs
    for check in ("database", "edges", "mail", "object store", "shared store"):
        assert [one.what for one in examined.findings[check]] == [f"{check}: no answer within 0.3 s"]


async def test_edges_are_asked_and_purged_by_commands(setup: Setup, programs: Programs) -> None:
    async def edge(*arguments: str) -> Any:
        given = {"HOME": str(setup.place), **setup.environment}
        ended = await asyncio.to_thread(
            programs.run, "forgelet", ["edge", *arguments, "--json"], given, folder=setup.place
        )
        assert (ended.status, ended.errors) == (0, "")
        assert not [secret for secret in SECRETS if secret in ended.output]
        return json.loads(ended.output)

    (status,) = await edge("status")
    assert (status["origin"], status["storage_token"], status["problem"]) == ("reachable", "right", None)
    path = "/group/app/-/raw/main/README.md"
    async with aiohttp.ClientSession() as session:
        for _ in range(2):  # what is not there is kept too, for a moment
            async with session.get(setup.environment["FORGELET_API_EDGE_URLS"] + path) as answer:
                assert answer.status == 404
    listed = await edge("list", "--prefix", "/group/app/")
    assert [(one["url"].endswith(path), one["bytes"] > 0) for one in listed] == [(True, True)]
    assert await edge("list", "--prefix", "/other/") == []
    (purged,) = await edge("purge", "--prefix", "/group/")
    assert purged["problem"] is None
    assert purged["purged"] >= 1
    assert await edge("list", "--prefix", "/group/app/") == []


def test_what_a_store_answers_is_told_by_its_words_and_not_by_digits_of_an_address() -> None:
    problem = Unavailable("the object store")
    problem.__cause__ = OSError("PUT http://127.0.0.1:14030/bucket/projects/0/doctor-4401: NoSuchBucket")
    assert "make the bucket" in services._unusable("The object store", "s3://bucket", problem).remedy
