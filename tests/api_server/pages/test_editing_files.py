"""Creating, editing, moving, deleting and uploading files in the browser: the commits, and that no text is lost."""

import base64
import re
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote

import aiohttp
import attrs
import pytest

from api_server.web.routes import Role
from tests.support.browser import Browser, browsing
from tests.support.forge import Forge, Person


@attrs.frozen
class Scene:
    forge: Forge
    project: dict[str, Any]
    owner: Person
    developer: Person
    reporter: Person

    @property
    def path(self) -> str:
        return f"/{self.project['path_with_namespace']}/-"

    @property
    def repository(self) -> str:
        return f"/projects/{self.project['id']}/repository"

    async def write(self, name: str, data: bytes, method: str = "POST") -> None:
        content = {"content": base64.b64encode(data).decode(), "encoding": "base64"}
        sent = content | {"branch": "main", "commit_message": "By the API"}
        url = f"{self.repository}/files/{quote(name, safe='')}"
        answer = await getattr(self.owner.api, method.lower())(url, sent)
        assert answer.status in (200, 201), answer

    async def read(self, name: str, ref: str = "main") -> bytes | None:
        answer = await self.owner.api.get(f"{self.repository}/files/{quote(name, safe='')}?ref={ref}")
        return base64.b64decode(answer.body["content"]) if answer.status == 200 else None

    async def last_message(self, ref: str = "main") -> str:
        return str((await self.owner.api.get(f"{self.repository}/commits/{ref}")).body["message"])


@pytest.fixture(scope="module")
async def scene(forge: Forge) -> Scene:
    owner, developer, reporter = await forge.user("owner"), await forge.user("dev"), await forge.user("rep")
    project = await forge.project(owner, initialize_with_readme=True)
    await forge.member("projects", project["id"], developer, Role.DEVELOPER)
    await forge.member("projects", project["id"], reporter, Role.REPORTER)
    return Scene(forge, project, owner, developer, reporter)


@pytest.fixture
async def browser(scene: Scene) -> AsyncIterator[Browser]:
    async with browsing(scene.forge, scene.owner) as opened:
        yield opened


async def test_a_file_is_written_and_stands_on_the_branch(browser: Browser, scene: Scene) -> None:
    await browser.get(f"{scene.path}/tree/main")
    assert f'href="{scene.path}/new/main"' in browser.text
    await browser.get(f"{scene.path}/new/main/docs")
    sent = {"file_name": "a/ü & b.md", "content": "one\r\n\r\n<two>", "branch_name": "main"}
    await browser.send(f"{scene.path}/create/main/docs", **sent)
    assert (browser.status, browser.path) == (200, f"{scene.path}/blob/main/docs/a/ü & b.md")
    assert await scene.read("docs/a/ü & b.md") == b"one\n\n<two>\n"
    assert await scene.last_message() == "Add ü & b.md"
    await browser.get(f"{scene.path}/new/main/docs")
    await browser.send(f"{scene.path}/create/main/docs", **sent | {"content": "other <text>"})
    assert (browser.status, "already exists" in browser.words) == (400, True)
    assert ">\nother &lt;text&gt;</textarea>" in browser.text
    await browser.send(f"{scene.path}/create/main/docs", **sent | {"file_name": "../x"})
    assert browser.status == 400
    await browser.send(f"{scene.path}/create/main/docs", **sent | {"file_name": "x/"})
    assert 'id="file-file_name-problem">File name has no name.' in browser.text


async def test_the_first_file_begins_an_empty_repository(scene: Scene, browser: Browser) -> None:
    empty = await scene.forge.project(scene.owner)
    path = f"/{empty['path_with_namespace']}"
    await browser.get(path)
    assert f'href="{path}/-/new/main?file_name=README.md"' in browser.text
    await browser.get(f"{path}/-/new/main?file_name=README.md")
    assert 'value="README.md"' in browser.text
    await browser.send(f"{path}/-/create/main", file_name="README.md", content="# Hello", branch_name="main")
    assert (browser.status, browser.path) == (200, f"{path}/-/blob/main/README.md")


async def test_an_edited_file_keeps_the_ends_of_its_lines(scene: Scene, browser: Browser) -> None:
    for name, before, after in (
        ("unix", b"a\nb\n", b"a\nc\n"),
        ("dos", b"a\r\nb\r\n", b"a\r\nc\r\n"),
        ("no-end", b"a", b"c"),
    ):
        await scene.write(name, before)
        await browser.get(f"{scene.path}/edit/main/{name}")
        typed = after.decode().replace("\r\n", "\n").replace("\n", "\r\n")  # as browsers send it
        await browser.send(
            f"{scene.path}/update/main/{name}", content=typed, branch_name="main", file_path=name
        )
        assert (browser.status, await scene.read(name)) == (200, after)
    await browser.get(f"{scene.path}/edit/main/unix")
    await browser.send(
        f"{scene.path}/update/main/unix", content="a", branch_name="main", file_path="moved/here"
    )
    assert (browser.path, await scene.read("unix"), await scene.read("moved/here")) == (
        f"{scene.path}/blob/main/moved/here",
        None,
        b"a",
    )


async def test_whoever_was_slower_keeps_her_text_and_decides(scene: Scene, browser: Browser) -> None:
    await scene.write("shared", b"first\n")
    await browser.get(f"{scene.path}/edit/main/shared")
    await scene.write("shared", b"second\n", "PUT")
    sent = {"content": "my <own> text", "branch_name": "main", "file_path": "shared"}
    await browser.send(f"{scene.path}/update/main/shared", **sent)
    assert (browser.status, "The file has changed since you started editing it" in browser.words) == (
        400,
        True,
    )
    assert ">\nmy &lt;own&gt; text</textarea>" in browser.text
    assert "Someone else changed this file." in browser.text
    assert await scene.read("shared") == b"second\n"
    await browser.send(f"{scene.path}/update/main/shared", **sent)
    assert (browser.status, await scene.read("shared")) == (200, b"my <own> text")
    await browser.get(f"{scene.path}/edit/main/shared")
    gone = {"branch": "main", "commit_message": "Gone"}
    assert (await scene.owner.api.delete(f"{scene.repository}/files/shared", json=gone)).status == 204
    await browser.send(f"{scene.path}/update/main/shared", **sent | {"content": "never lost"})
    assert (browser.status, "never lost" in browser.text) == (404, True)


async def test_a_new_branch_leads_to_its_merge_request(scene: Scene) -> None:
    """If the user may not push to main, the form offers it from the start."""
    async with browsing(scene.forge, scene.developer) as browser:
        await browser.get(f"{scene.path}/edit/main/README.md")
        assert f'value="{scene.developer.username}-patch-1"' in browser.text
        sent = {"content": "# New\n", "file_path": "README.md", "branch_name": "main"}
        await browser.send(f"{scene.path}/update/main/README.md", **sent)
        assert (browser.status, "# New" in browser.text) == (403, True)
        sent |= {"branch_name": "topic/new", "create_merge_request": "true"}
        await browser.send(f"{scene.path}/update/main/README.md", **sent)
        assert (
            browser.path_qs == f"{scene.path}/merge_requests/new?source_branch=topic/new&target_branch=main"
        )
        assert "1 file changed" in browser.text
        assert await scene.read("README.md", "topic/new") == b"# New\n"
        await browser.get(f"{scene.path}/edit/main/README.md")
        await browser.send(f"{scene.path}/update/main/README.md", **sent)
        assert (
            browser.status,
            "Branch already exists: use main or the name of a new branch." in browser.words,
        ) == (400, True)


async def test_a_file_is_uploaded_and_replaced_on_demand(scene: Scene, browser: Browser) -> None:
    async def upload(data: bytes, **more: str) -> None:
        await browser.get(f"{scene.path}/upload/main/files")
        form = aiohttp.FormData({**browser.hidden, "branch_name": "main"} | more, quote_fields=False)
        form.add_field("file", data, filename="a b.bin", content_type="application/octet-stream")
        await browser.post(f"{scene.path}/upload/main/files", form)

    await upload(b"\0\xff\r\n1")
    assert (browser.status, browser.path) == (200, f"{scene.path}/blob/main/files/a b.bin")
    await upload(b"2")
    assert (browser.status, "Select the checkbox to replace the file." in browser.words) == (400, True)
    assert await scene.read("files/a b.bin") == b"\0\xff\r\n1"
    await upload(b"2", replace="true")
    assert (browser.status, await scene.read("files/a b.bin")) == (200, b"2")
    await browser.get(f"{scene.path}/upload/main/files")
    await browser.send(f"{scene.path}/upload/main/files", branch_name="main", file="")
    assert (browser.status, "File is missing: choose a file." in browser.words) == (400, True)


async def test_a_file_is_deleted_by_a_commit(scene: Scene, browser: Browser) -> None:
    await scene.write("old/file", b"x")
    await browser.get(f"{scene.path}/blob/main/old/file")
    assert f'href="{scene.path}/delete/main/old/file"' in browser.text
    await browser.get(f"{scene.path}/delete/main/old/file")
    await browser.send(f"{scene.path}/delete/main/old/file", branch_name="main", commit_message="Not needed")
    assert (browser.status, await scene.read("old/file")) == (404, None)  # the folder no longer exists either
    assert await scene.last_message() == "Not needed"


async def test_what_cannot_be_edited_says_why(scene: Scene, browser: Browser) -> None:
    await scene.write("binary", b"\0\1")
    await scene.write("latin", "ü".encode("latin-1"))
    for name in ("binary", "latin"):
        await browser.get(f"{scene.path}/edit/main/{name}")
        assert (browser.status, "is not UTF-8 text" in browser.words) == (422, True)
    for path in ("edit/main/nothing", "edit/main", "new/nothing", "delete/main/nothing"):
        assert (await browser.get(f"{scene.path}/{path}")).status == 404
    sha = (await scene.owner.api.get(f"{scene.repository}/commits/main")).body["id"]
    await browser.get(f"{scene.path}/blob/{sha}/README.md")
    assert "/-/edit/" not in browser.text
    assert (await browser.get(f"{scene.path}/edit/{sha}/README.md")).status == 404


async def test_readers_have_no_buttons(scene: Scene) -> None:
    async with browsing(scene.forge, scene.reporter) as browser:
        for path in ("tree/main", "blob/main/README.md"):
            await browser.get(f"{scene.path}/{path}")
            assert (browser.status, re.findall(r"/-/(new|edit|delete|upload)/", browser.text)) == (200, [])
        for path in ("new/main", "edit/main/README.md", "delete/main/README.md", "upload/main"):
            assert (await browser.get(f"{scene.path}/{path}")).status == 403
