"""Pushed projects whose files tests request."""

from pathlib import Path
from typing import Any

import attrs
import pytest

from tests.support.forge import Answer, Forge, Person
from tests.support.git_client import push_files

PNG = b"\x89PNG\r\n\x1a\n" + bytes(20)
FILES: dict[str, str | bytes] = {
    "README.md": "# Hello\n", "docs/guide.md": "guide\n", "page.html": "<script>alert(1)</script>", "logo.png": PNG,
    "logo.svg": '<svg xmlns="http://www.w3.org/2000/svg"/>',
    "blob.bin": bytes(range(256)),
    "büro.xhtml": "<html/>",
    "large.txt": "0123456789\n" * 150_000,
    "model.lfs": "version https://git-lfs.github.com/spec/v1\noid sha256:" + "0" * 64 + "\nsize 12\n",
}  # fmt: skip


@attrs.frozen
class Place:
    """A pushed project and its owner."""

    forge: Forge
    alice: Person
    project: dict[str, Any]
    sha: str

    @property
    def path(self) -> str:
        return str(self.project["path_with_namespace"])

    async def get(self, rest: str, person: Person | None = None, **options: Any) -> Answer:
        client = person.api if person else self.forge.anonymous
        return await client.get(f"{self.forge.base}/{self.path}{rest}", **options)

    async def bytes(self, rest: str, person: Person | None = None) -> bytes:
        headers = {"PRIVATE-TOKEN": person.token} if person else {}
        url = f"{self.forge.base}/{self.path}{rest}"
        async with self.forge.session.get(url, headers=headers) as answer:
            assert answer.status == 200, await answer.text()
            return await answer.read()


async def new_place(forge: Forge, folder: Path, visibility: str) -> Place:
    alice = await forge.user("alice")
    project = await forge.project(alice, visibility=visibility)
    sha = await push_files(forge, folder, project, alice, FILES)
    return Place(forge, alice, project, sha)


@pytest.fixture(scope="module")
async def public(forge: Forge, tmp_path_factory: pytest.TempPathFactory) -> Place:
    return await new_place(forge, tmp_path_factory.mktemp("public"), "public")


@pytest.fixture(scope="module")
async def private(forge: Forge, tmp_path_factory: pytest.TempPathFactory) -> Place:
    return await new_place(forge, tmp_path_factory.mktemp("private"), "private")
