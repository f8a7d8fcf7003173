"""Files through the API: small ones from memory, large ones in pieces, and what is told of them beside their bytes."""

import asyncio
import base64
import hashlib
from pathlib import Path
from typing import Any

import pytest

from api_server.code.reading import STREAMS
from api_server.web.context import SERVICES
from tests.support.forge import Forge, Person
from tests.support.git_client import push_files

SMALL = bytes(range(256)) * 10
LARGE = bytes(range(255)) * 4_000 + b"!"  # no multiple of three
LIMIT = len(LARGE)


@pytest.fixture
async def stored(forge: Forge, tmp_path: Path) -> Any:
    """A project's files, on a server that answers no larger ones as JSON."""
    with forge.changed_settings(file_json_limit=LIMIT):
        alice = await forge.user("alice")
        project = await forge.project(alice)
        files: dict[str, str | bytes] = {"small": SMALL, "large": LARGE, "larger": LARGE + b"!", "a\nb": "x"}
        sha = await push_files(forge, tmp_path / "work", project, alice, files)
        yield forge, alice, f"/projects/{project['id']}/repository/files", sha


async def raw(forge: Forge, alice: Person, path: str, **headers: str) -> tuple[int, bytes, Any]:
    sent = {"PRIVATE-TOKEN": alice.token} | headers
    async with forge.session.get(f"{forge.base}/api/v4{path}", headers=sent) as answer:
        return answer.status, await answer.read(), answer.headers


@pytest.mark.parametrize(("name", "content"), [("small", SMALL), ("large", LARGE)])
async def test_a_file_as_json_and_raw(stored: Any, name: str, content: bytes) -> None:
    forge, alice, where, sha = stored
    answer = await alice.api.get(f"{where}/{name}?ref=main")
    blob = answer.body["blob_id"]
    assert (answer.status, answer.body) == (
        200,
        {
            "file_name": name,
            "file_path": name,
            "size": len(content),
            "encoding": "base64",
            "content_sha256": hashlib.sha256(content).hexdigest(),
            "ref": "main",
            "blob_id": blob,
            "commit_id": sha,
            "last_commit_id": sha,
            "execute_filemode": False,
            "content": base64.b64encode(content).decode(),
        },
    )
    assert list(answer.body)[-1] == "content"
    status, body, headers = await raw(forge, alice, f"{where}/{name}/raw")
    assert (status, body == content, headers["ETag"]) == (200, True, f'"{blob}"')
    status, body, headers = await raw(forge, alice, f"{where}/{name}/raw", Range="bytes=2500-2509")
    assert (status, body, headers["Content-Range"]) == (
        206, content[2500:2510], f"bytes 2500-2509/{len(content)}",
    )  # fmt: skip
    status, _, headers = await raw(forge, alice, f"{where}/{name}/raw", Range=f"bytes={len(content)}-")
    assert (status, headers["Content-Range"]) == (416, f"bytes */{len(content)}")
    for path in (f"{where}/{name}?ref=main", f"{where}/{name}/raw"):
        tag = (await alice.api.get(path)).headers["ETag"]
        known = await alice.api.get(path, headers={"If-None-Match": tag})
        assert (known.status, known.body, known.headers["ETag"]) == (304, "", tag)


async def test_files_beyond_the_limit_are_read_raw(stored: Any) -> None:
    forge, alice, where, _ = stored
    refused = await alice.api.get(f"{where}/larger")
    told = f"413 Request Entity Too Large - files beyond {LIMIT} bytes are read at "
    assert (refused.status, refused.body) == (
        413,
        {"message": f"{told}/projects/:id/repository/files/:file_path/raw"},
    )
    assert (await raw(forge, alice, f"{where}/larger/raw"))[:2] == (200, LARGE + b"!")
    assert (await alice.api.request("HEAD", f"{where}/larger")).status == 200


@pytest.mark.parametrize("name", ["small", "large"])
async def test_head_tells_of_a_file_in_gitlabs_header_fields(stored: Any, name: str) -> None:
    _, alice, where, sha = stored
    told = {
        "Blob-Id": (await alice.api.get(f"{where}/{name}")).body["blob_id"],
        "Commit-Id": sha,
        "Encoding": "base64",
        "Execute-Filemode": "false",
        "File-Name": name,
        "File-Path": name,
        "Ref": "HEAD",
        "Size": str(len(SMALL if name == "small" else LARGE)),
    }
    head = await alice.api.request("HEAD", f"{where}/{name}")
    fields = {key: value for key, value in head.headers.items() if key.lower().startswith("x-gitlab-")}
    assert (head.status, fields) == (
        200,
        {f"X-Gitlab-{key}": value for key, value in (told | {"Last-Commit-Id": sha}).items()},
    )
    bytes_alone = await alice.api.request("HEAD", f"{where}/{name}/raw")
    assert {key: bytes_alone.headers[f"X-Gitlab-{key}"] for key in told} == told
    assert bytes_alone.headers["Content-Length"] == told["Size"]


async def test_a_name_with_a_line_break_stands_in_no_header_field(stored: Any) -> None:
    _, alice, where, _ = stored
    head = await alice.api.request("HEAD", f"{where}/a%0Ab")
    assert (head.status, head.headers["X-Gitlab-File-Name"]) == (200, "a_b")


async def test_a_caller_has_only_so_many_large_files_under_way(new_forge: Any, tmp_path: Path) -> None:
    async with new_forge(file_streams_per_caller=1, repository_patience=0.0, file_json_limit=2**30) as forge:
        alice = await forge.user("alice")
        project = await forge.project(alice, visibility="public")
        await push_files(forge, tmp_path / "work", project, alice, {"large": bytes(20_000_000), "small": "x"})
        where = f"/projects/{project['id']}/repository/files"
        page = f"{forge.base}/{project['path_with_namespace']}/-/raw/main"
        headers = {"PRIVATE-TOKEN": alice.token}
        async with forge.session.get(f"{forge.base}/api/v4{where}/large/raw", headers=headers) as slow:
            assert slow.status == 200
            refused = await alice.api.get(f"{where}/large")
            assert (refused.status, refused.headers["Retry-After"]) == (429, "5")
            plain = await alice.api.get(f"{page}/large")
            assert (plain.status, plain.headers["Retry-After"], plain.body) == (
                429, "5", "Too many of your requests are under way at once. Try again later.\n",
            )  # fmt: skip
            assert (await alice.api.get(f"{where}/small")).status == 200
            stranger = await forge.anonymous.request("HEAD", f"{page}/large")
            assert (stranger.status, stranger.headers["Content-Length"]) == (200, "20000000")
            assert len(await slow.read()) == 20_000_000
        async with asyncio.timeout(20):
            while forge.server.app[SERVICES][STREAMS].held:
                await asyncio.sleep(0.01)
        assert (await alice.api.get(f"{page}/large")).status == 200
