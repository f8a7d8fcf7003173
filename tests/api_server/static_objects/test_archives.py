"""Archives: their names, formats and bytes, and how long they are kept here."""

import hashlib
import io
import shutil
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

from api_server.web.routes import Role
from tests.api_server.static_objects.places import Place, new_place
from tests.support.forge import Forge


@pytest.mark.parametrize(
    ("rest", "file_name", "folder"),
    [
        ("main/whatever.zip", "{path}-main-{sha}.zip", "{path}-main-{sha}"),
        ("main/{path}-main.zip", "{path}-main.zip", "{path}-main"),
        ("main/{path}-main.zip?append_sha=true", "{path}-main-{sha}.zip", "{path}-main-{sha}"),
        ("main/whatever.zip?append_sha=false", "{path}-main.zip", "{path}-main"),
        ("{sha}/whatever.zip", "{path}-{sha}.zip", "{path}-{sha}"),
        ("main.zip", "{path}-main-{sha}.zip", "{path}-main-{sha}"),
        ("main.zip?append_sha=false", "{path}-main.zip", "{path}-main"),
        ("{sha}.zip", "{path}-{sha}.zip", "{path}-{sha}"),
        ("with/slash.zip", "{path}-with-slash-{sha}.zip", "{path}-with-slash-{sha}"),
        ("with/slash/x.zip", "{path}-with-slash-{sha}.zip", "{path}-with-slash-{sha}"),
        ("main/{path}-main.zip?path=docs", "{path}-main-docs.zip", "{path}-main-docs"),
    ],
)
async def test_names_of_archives(public: Place, rest: str, file_name: str, folder: str) -> None:
    words = {"path": public.project["path"], "sha": public.sha}
    if "with/slash" in rest:  # it may be there already
        branch = {"branch": "with/slash", "ref": "main"}
        await public.alice.api.post(f"/projects/{public.project['id']}/repository/branches", branch)
    url = f"/-/archive/{rest.format(**words)}"
    answer = await public.get(url)
    assert answer.headers["Content-Disposition"] == f'attachment; filename="{file_name.format(**words)}"'
    assert answer.headers["Content-Type"] == "application/zip"
    names = zipfile.ZipFile(io.BytesIO(await public.bytes(url))).namelist()
    assert {name.split("/")[0] for name in names} == {folder.format(**words)}
    assert f"{folder.format(**words)}/docs/guide.md" in names
    assert ("path=docs" in rest) == (f"{folder.format(**words)}/README.md" not in names)


@pytest.mark.parametrize("ending", ["tar", "tar.gz", "tgz", "gz", "tar.bz2", "tbz2", "tbz", "tb2", "bz2"])
async def test_formats_of_archives_and_their_bytes(public: Place, ending: str) -> None:
    first = await public.bytes(f"/-/archive/main/x.{ending}")
    with tarfile.open(fileobj=io.BytesIO(first)) as archive:
        member = archive.extractfile(f"{public.project['path']}-main-{public.sha}/README.md")
        assert member is not None
        assert member.read() == b"# Hello\n"
    again = await public.bytes(f"/-/archive/{public.sha}/y.{ending}?append_sha=true")
    assert len(again) > 100
    assert (
        hashlib.sha256(first).digest()
        == hashlib.sha256(await public.bytes(f"/-/archive/main/z.{ending}")).digest()
    )


@pytest.mark.parametrize("rest", ["missing.zip", "missing/main.zip", "main.rar", "main/x.rar"])
async def test_what_is_no_archive_is_404(public: Place, rest: str) -> None:
    assert (await public.get(f"/-/archive/{rest}")).status == 404


@pytest.mark.parametrize("path", ["archive", "archive.zip", "archive.tb2"])
async def test_the_api_gives_archives_to_those_who_may_read_the_repository(
    forge: Forge, public: Place, private: Place, path: str
) -> None:
    stranger, guest = await forge.user(), await forge.user()
    await forge.member("projects", private.project["id"], guest, Role.GUEST)
    for place, person, status in [(public, stranger, 200), (private, stranger, 404), (private, guest, 403)]:
        answer = await person.api.get(f"/projects/{place.project['id']}/repository/{path}")
        assert answer.status == status


@pytest.mark.parametrize("damage", ["no folder", "a folder in the way"])
async def test_a_disk_that_takes_no_archive_is_503(new_forge: Any, tmp_path: Path, damage: str) -> None:
    async with new_forge(data_dir=tmp_path / "data") as forge:
        place = await new_place(forge, tmp_path / "clone", "public")
        archives = tmp_path / "data" / "archives"
        shutil.rmtree(archives, ignore_errors=True)
        if damage == "no folder":
            archives.write_text("")
        else:
            archives.mkdir()
            (archives / str(place.project["id"])).write_text("")
        answer = await place.get("/-/archive/main/x.zip")
        assert (answer.status, answer.headers["Retry-After"]) == (503, "5")
        shutil.rmtree(archives) if archives.is_dir() else archives.unlink()
        assert (await place.bytes("/-/archive/main/x.zip"))[:2] == b"PK"
