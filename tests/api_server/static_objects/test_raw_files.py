"""Raw files: what is served under which headers."""

from pathlib import Path

import pytest

from tests.api_server.static_objects.places import FILES, Place
from tests.support.forge import Forge
from tests.support.git_client import Git, git_url, push_files
from tests.support.wire import request, talk


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


async def test_only_a_full_sha_names_the_same_for_long(public: Place) -> None:
    """A part of one is another commit's as well one day, or a branch's name."""
    for ref, seconds in {
        public.sha: 3600,
        public.sha.upper(): 3600,
        public.sha[:39]: 60,
        public.sha[:8]: 60,
        "main": 60,
        "HEAD": 60,
        "refs/heads/main": 60,
    }.items():
        for path in (f"/-/raw/{ref}/README.md", f"/-/archive/{ref}/x.zip", f"/-/archive/{ref}.zip"):
            answer = await public.get(path)
            assert (path, answer.status) == (path, 200)
            assert (path, answer.headers["Cache-Control"]) == (
                path,
                f"public, max-age={seconds}, must-revalidate, stale-while-revalidate=60, stale-if-error=300, "
                "s-maxage=60",
            )


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


async def test_names_that_cannot_stand_in_a_header_are_written_so_that_they_can(forge: Forge) -> None:
    alice = await forge.user("alice")
    project = await forge.project(alice, visibility="public")
    action = {"action": "create", "file_path": 'a"\rb/c"\rd.svg', "content": "<svg/>"}
    wanted = {"branch": "main", "commit_message": "Odd", "actions": [action]}
    made = await alice.api.post(f"/projects/{project['id']}/repository/commits", wanted)
    place = Place(forge, alice, project, made.body["id"])
    name = f"{project['path']}-main-{place.sha}"
    branch = {"branch": "zweig-ü", "ref": "main"}
    assert (await alice.api.post(f"/projects/{project['id']}/repository/branches", branch)).status == 201
    for path, disposition in (
        ("/-/raw/main/a%22%0Db/c%22%0Dd.svg", "filename=\"c__d.svg\"; filename*=UTF-8''c%22%0Dd.svg"),
        (
            "/-/archive/main/x.zip?path=a%22%0Db",
            f"filename=\"{name}-a__b.zip\"; filename*=UTF-8''{name}-a%22%0Db.zip",
        ),
        (
            "/-/archive/zweig-%C3%BC/x.tar.gz?append_sha=false",
            f'filename="{project["path"]}-zweig-?.tar.gz"; '
            f"filename*=UTF-8''{project['path']}-zweig-%C3%BC.tar.gz",
        ),
    ):
        answer = await place.get(path)
        assert (answer.status, answer.headers["Content-Disposition"]) == (200, f"attachment; {disposition}")


async def test_a_line_feed_is_a_character_like_others_in_a_file_name(forge: Forge, tmp_path: Path) -> None:
    alice = await forge.user("alice")
    project = await forge.project(alice, visibility="public")
    await push_files(forge, tmp_path, project, alice, {"a\nb/c\n\r.svg": "<svg/>\n"})
    place = Place(forge, alice, project, "")
    for marker in ("-/raw", "raw"):
        answer = await place.get(f"/{marker}/main/a%0Ab/c%0A%0D.svg")
        assert (answer.status, answer.body) == (200, "<svg/>\n")
        assert answer.headers["Content-Disposition"] == (
            "attachment; filename=\"c__.svg\"; filename*=UTF-8''c%0A%0D.svg"
        )
    answers = [
        await place.get(f"/-/archive/main/x%0Ay.{ending}?path=a%0Ab") for ending in ("zip", "tar", "tar.gz")
    ]
    assert [answer.status for answer in answers] == [200, 200, 200]
    assert all("\n" not in answer.headers["Content-Disposition"] for answer in answers)
    nothing = [
        await place.get(f"/-/{rest}") for rest in ("raw/ma%0Ain/a", "archive/ma%0Ain/a.zip", "raw/main/%0A")
    ]
    assert [(answer.status, answer.body) for answer in nothing] == [(404, "404 Not Found\n")] * 3


async def test_an_lfs_pointer_is_served_as_what_it_is(public: Place) -> None:
    assert (await public.get("/-/raw/main/model.lfs")).body == FILES["model.lfs"]


async def test_a_target_may_have_the_absolute_form_and_is_not_too_long(public: Place) -> None:
    path = f"/{public.path}/-/raw/main/docs/guide.md"
    async with talk(public.forge.settings.port) as client:
        for target in (path, f"http://other.example{path}?inline=true", f"HTTP://[::1]:8080{path}"):
            await client.send(request("GET", target))
            head = await client.head()
            assert (target, head[:12]) == (target, b"HTTP/1.1 200")
            assert await client.reader.readexactly(6) == b"guide\n"
        await client.send(request("GET", f"{path}{'x' * 8000}"))
        assert (await client.head())[:12] == b"HTTP/1.1 414"


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


async def test_projects_are_known_by_their_paths_alone(forge: Forge, public: Place) -> None:
    for reference in (public.project["id"], "9" * 25):
        answer = await forge.anonymous.get(f"{forge.base}/{reference}/-/raw/main/README.md")
        assert (answer.status, answer.body) == (404, "404 Not Found\n")
