"""Raw files and archives: what is served to whom, under which headers, and when users go to the external storage."""

import hashlib
import io
import tarfile
import zipfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import attrs
import pytest

from api_server.web.access import Role
from tests.support.forge import Answer, Forge, Person
from tests.support.git_client import Git, git_url, push_files

STORAGE_TOKEN = "storage-token-of-the-tests"
PNG = b"\x89PNG\r\n\x1a\n" + bytes(20)
FILES: dict[str, str | bytes] = {
    "README.md": "# Hello\n",
    "docs/guide.md": "guide\n",
    "page.html": "<script>alert(1)</script>",
    "logo.png": PNG,
    "logo.svg": '<svg xmlns="http://www.w3.org/2000/svg"/>',
    "blob.bin": bytes(range(256)),
    "büro.xhtml": "<html/>",
    "large.txt": "0123456789\n" * 150_000,
    "model.lfs": "version https://git-lfs.github.com/spec/v1\noid sha256:" + "0" * 64 + "\nsize 12\n",
}


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


async def _place(forge: Forge, folder: Path, visibility: str) -> Place:
    alice = await forge.user("alice")
    project = await forge.project(alice, visibility=visibility)
    sha = await push_files(forge, folder, project, alice, FILES)
    return Place(forge, alice, project, sha)


@pytest.fixture(scope="module")
async def public(forge: Forge, tmp_path_factory: pytest.TempPathFactory) -> Place:
    return await _place(forge, tmp_path_factory.mktemp("public"), "public")


@pytest.fixture(scope="module")
async def private(forge: Forge, tmp_path_factory: pytest.TempPathFactory) -> Place:
    return await _place(forge, tmp_path_factory.mktemp("private"), "private")


@pytest.mark.parametrize("marker", ["-/raw", "raw"])
async def test_a_file_of_a_public_project_is_served_to_everybody(public: Place, marker: str) -> None:
    answer = await public.get(f"/{marker}/main/README.md")
    assert (answer.status, answer.body) == (200, "# Hello\n")
    expected = {
        "Content-Type": "text/plain; charset=utf-8",
        "Content-Disposition": "inline",
        "Cache-Control": "public, max-age=60, must-revalidate, stale-while-revalidate=60, stale-if-error=300, "
        "s-maxage=60",
        "CDN-Cache-Control": "max-age=60",
        "X-Content-Type-Options": "nosniff",
        "Content-Security-Policy": "default-src 'none'; sandbox",
        "Referrer-Policy": "no-referrer",
        "Accept-Ranges": "bytes",
        "Content-Length": "8",
    }
    assert {name: answer.headers.get(name) for name in expected} == expected
    assert answer.headers["Surrogate-Key"].startswith(f"project-{public.project['id']} ")


async def test_what_a_full_sha_names_may_be_kept_longer(public: Place) -> None:
    answer = await public.get(f"/-/raw/{public.sha}/README.md")
    assert answer.headers["Cache-Control"].startswith("public, max-age=3600,")
    assert answer.headers["CDN-Cache-Control"] == "max-age=86400"
    by_branch = await public.get("/-/raw/main/README.md")
    assert by_branch.headers["ETag"] == answer.headers["ETag"]


@pytest.mark.parametrize(
    ("name", "media_type", "disposition"),
    [
        ("page.html", "text/plain; charset=utf-8", "inline"),
        ("logo.png", "image/png", "inline"),
        ("logo.svg", "image/svg+xml", "attachment; filename=\"logo.svg\"; filename*=UTF-8''logo.svg"),
        (
            "blob.bin",
            "application/octet-stream",
            "attachment; filename=\"blob.bin\"; filename*=UTF-8''blob.bin",
        ),
        (
            "b%C3%BCro.xhtml",
            "text/plain; charset=utf-8",
            "attachment; filename=\"b?ro.xhtml\"; filename*=UTF-8''b%C3%BCro.xhtml",
        ),
        ("README.md?inline=true", "text/plain; charset=utf-8", "inline"),
        (
            "README.md?inline=false",
            "text/plain; charset=utf-8",
            "attachment; filename=\"README.md\"; filename*=UTF-8''README.md",
        ),
        (
            "logo.svg?inline=true",
            "image/svg+xml",
            "attachment; filename=\"logo.svg\"; filename*=UTF-8''logo.svg",
        ),
    ],
)
async def test_no_browser_runs_what_users_made(
    public: Place, name: str, media_type: str, disposition: str
) -> None:
    answer = await public.get(f"/-/raw/main/{name}")
    assert (answer.status, answer.headers["Content-Type"], answer.headers["Content-Disposition"]) == (
        200,
        media_type,
        disposition,
    )


async def test_an_lfs_pointer_is_served_as_what_it_is(public: Place) -> None:
    assert (await public.get("/-/raw/main/model.lfs")).body == FILES["model.lfs"]


async def test_a_matching_entity_tag_gets_304(public: Place) -> None:
    for path in ("/-/raw/main/README.md", "/-/archive/main/x.tar.gz"):
        first = await public.get(path)
        again = await public.get(path, headers={"If-None-Match": first.headers["ETag"]})
        assert (again.status, again.body, again.headers["ETag"]) == (304, "", first.headers["ETag"])
        assert again.headers["Cache-Control"] == first.headers["Cache-Control"]


@pytest.mark.parametrize("name", ["README.md", "large.txt"])
async def test_ranges(public: Place, name: str) -> None:
    whole = FILES[name]
    path = f"/-/raw/main/{name}"
    part = await public.get(path, headers={"Range": "bytes=2-4"})
    assert (part.status, part.body, part.headers["Content-Range"]) == (
        206,
        whole[2:5],
        f"bytes 2-4/{len(whole)}",
    )
    tail = await public.get(path, headers={"Range": "bytes=-3"})
    assert (tail.status, tail.body) == (206, whole[-3:])
    other = await public.get(path, headers={"Range": "bytes=2-4", "If-Range": '"other"'})
    assert (other.status, other.body) == (200, whole)
    behind = await public.get(path, headers={"Range": f"bytes={len(whole)}-"})
    assert (behind.status, behind.headers["Content-Range"]) == (416, f"bytes */{len(whole)}")
    head = await public.forge.anonymous.request("HEAD", f"{public.forge.base}/{public.path}{path}")
    assert (head.status, head.headers["Content-Length"]) == (200, str(len(whole)))


async def test_the_longest_existing_ref_wins(forge: Forge, tmp_path: Path) -> None:
    alice = await forge.user("alice")
    project = await forge.project(alice, visibility="public")
    await push_files(forge, tmp_path / "w", project, alice, {"b/c": "of release"}, branch="release")
    git = Git(tmp_path / "w")
    await git.commit_files({"c": "of feature/b"})
    await git(
        "push", "--quiet", git_url(forge, project["path_with_namespace"], alice), "HEAD:refs/heads/feature/b"
    )
    place = Place(forge, alice, project, "")
    assert (await place.get("/-/raw/release/b/c")).body == "of release"
    assert (await place.get("/-/raw/feature/b/c")).body == "of feature/b"
    assert (await place.get("/-/archive/feature/b/x.zip")).status == 200
    for unknown in (
        "/-/raw/nope/c",
        "/-/raw/release/nope",
        "/-/raw/release/b",
        "/-/archive/nope/x.zip",
        "/-/archive/release/x.rar",
    ):
        assert (await place.get(unknown)).status == 404


@pytest.mark.parametrize(
    ("rest", "file_name", "folder"),
    [
        ("main/whatever.zip", "{path}-main-{sha}.zip", "{path}-main-{sha}"),
        ("main/{path}-main.zip", "{path}-main.zip", "{path}-main"),
        ("main/{path}-main.zip?append_sha=true", "{path}-main-{sha}.zip", "{path}-main-{sha}"),
        ("main/whatever.zip?append_sha=false", "{path}-main.zip", "{path}-main"),
        ("{sha}/whatever.zip", "{path}-{sha}.zip", "{path}-{sha}"),
        ("main/{path}-main.zip?path=docs", "{path}-main-docs.zip", "{path}-main-docs"),
    ],
)
async def test_names_of_archives(public: Place, rest: str, file_name: str, folder: str) -> None:
    words = {"path": public.project["path"], "sha": public.sha}
    url = f"/-/archive/{rest.format(**words)}"
    answer = await public.get(url)
    assert answer.headers["Content-Disposition"] == f'attachment; filename="{file_name.format(**words)}"'
    assert answer.headers["Content-Type"] == "application/zip"
    names = zipfile.ZipFile(io.BytesIO(await public.bytes(url))).namelist()
    assert {name.split("/")[0] for name in names} == {folder.format(**words)}
    assert f"{folder.format(**words)}/docs/guide.md" in names
    assert ("path=docs" in rest) == (f"{folder.format(**words)}/README.md" not in names)


@pytest.mark.parametrize("ending", ["tar", "tar.gz", "tgz", "tar.bz2", "tbz2"])
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


async def test_private_files_need_a_token_that_reaches(private: Place) -> None:
    path = "/-/raw/main/README.md"
    stranger = await private.forge.user("carol")
    assert (await private.get(path)).status == 404
    assert (await private.get(path, stranger)).status == 404
    assert (await private.get(f"{path}?token=flso-wrong")).status == 401
    mine = await private.get(path, private.alice)
    assert (mine.status, mine.body) == (200, "# Hello\n")
    assert mine.headers["Cache-Control"] == "private, max-age=0, must-revalidate"
    assert mine.headers["CDN-Cache-Control"] == "private, max-age=0, must-revalidate"


async def test_the_static_object_token_opens_files_and_nothing_else(private: Place) -> None:
    path = "/-/raw/main/README.md"
    rotated = await private.alice.api.post("/user/static_object_token/rotate")
    token = rotated.body["token"]
    assert (rotated.status, set(rotated.body), token[:5]) == (201, {"token"}, "flso-")
    assert (await private.get(f"{path}?token={token}")).body == "# Hello\n"
    assert (await private.get(path, headers={"X-Service-Static-Object-Token": token})).body == "# Hello\n"
    for parameter in ("private_token", "token"):
        assert (await private.forge.anonymous.get(f"/user?{parameter}={token}")).status == 401
    await private.alice.api.post("/user/static_object_token/rotate")
    assert (await private.get(f"{path}?token={token}")).status == 401


async def test_a_public_project_with_a_members_only_repository_hides_its_files(private: Place) -> None:
    forge, alice = private.forge, private.alice
    project = await forge.project(alice, visibility="public", repository_access_level="private")
    place = Place(forge, alice, project, "")
    assert (await place.get("/-/raw/main/README.md")).status == 404


async def test_files_are_rate_limited_by_path(new_forge: Callable[..., Any], tmp_path: Path) -> None:
    async with new_forge(raw_rate_limit=2, anonymous_archive_rate_limit=1) as forge:
        place = await _place(forge, tmp_path / "work", "public")
        statuses = [
            (await place.get(f"/-/raw/{ref}/README.md")).status for ref in ("main", place.sha, "main")
        ]
        assert statuses == [200, 200, 429]
        assert (await place.get("/-/raw/main/page.html")).status == 200
        assert (await place.get("/-/archive/main/x.zip")).status == 200
        refused = await place.get("/-/archive/main/x.tar")
        assert (refused.status, refused.headers["Retry-After"]) == (429, "60")
        assert (await place.get("/-/archive/main/x.tar", place.alice)).status == 200


@pytest.fixture(scope="module")
async def stored(
    new_database: Callable[[], str], tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Forge]:
    """A server with an external storage configured."""
    from tests.support.forge import running_forge

    async with running_forge(new_database(), tmp_path_factory.mktemp("stored"), raw_rate_limit=1) as forge:
        changed = await forge.root.put(
            "/application/settings",
            {
                "static_objects_external_storage_url": "https://cdn.example.org",
                "static_objects_external_storage_auth_token": STORAGE_TOKEN,
            },
        )
        assert changed.status == 200
        yield forge


async def test_users_are_sent_to_the_external_storage(stored: Forge, tmp_path: Path) -> None:
    place = await _place(stored, tmp_path / "public", "public")
    answer = await place.get("/-/raw/main/b%C3%BCro.xhtml?inline=false&foo=bar&token=flso-x")
    assert answer.status == 401  # a token that is not valid is never passed on
    answer = await place.get("/-/raw/main/b%C3%BCro.xhtml?inline=false&foo=bar")
    assert (answer.status, answer.headers["Location"]) == (
        302,
        f"https://cdn.example.org/{place.path}/-/raw/main/b%C3%BCro.xhtml?inline=false",
    )


async def test_the_redirect_of_a_private_object_carries_the_users_own_token(
    stored: Forge, tmp_path: Path
) -> None:
    place = await _place(stored, tmp_path / "private", "private")
    bob = await stored.user("bob")
    await stored.member("projects", place.project["id"], bob, Role.REPORTER)
    assert (await place.get("/-/archive/main/x.zip")).status == 404  # a stranger never gets a redirect
    answer = await place.get("/-/archive/main/x.zip?append_sha=true", bob)
    location = urlsplit(answer.headers["Location"])
    query = parse_qs(location.query)
    assert (answer.status, location.netloc, location.path) == (
        302,
        "cdn.example.org",
        f"/{place.path}/-/archive/main/x.zip",
    )
    assert (query["append_sha"], query["token"][0][:5]) == (["true"], "flso-")
    storage = {"X-Service-External-Storage-Token": STORAGE_TOKEN}
    token = {"X-Service-Static-Object-Token": query["token"][0]}
    path = "/-/raw/main/README.md"
    for _ in range(3):  # beyond the rate limit, which the storage does not meet
        assert (await place.get(path, headers=storage | token)).body == "# Hello\n"
    assert (await place.get(path, headers=storage)).status == 404
    wrong = {"X-Service-External-Storage-Token": "wrong"}
    assert (await place.get(path, headers=wrong | token)).status == 403
    await stored.root.post(f"/users/{bob.id}/block")
    assert (await place.get(path, headers=storage | token)).status == 403
