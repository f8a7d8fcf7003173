"""Raw files: their content and headers."""

import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import psycopg2
import pytest
from structlog.testing import capture_logs

from api_server.static_objects.access import LIMITS
from api_server.static_objects.raw import SNIFFED_BYTES, label
from api_server.web.context import SERVICES
from api_server.web.routes import Role
from common.static_paths import NO_FILE
from tests.api_server.static_objects.conftest import FILES, Place, new_place
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
    """A part of a SHA may later match another commit or the name of a branch."""
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


@pytest.mark.parametrize(
    ("scope", "status"),
    [
        ("read_repository", 200),
        ("read_api", 200),
        ("api", 200),
        ("read_user", 403),
        ("write_repository", 403),
    ],
)
async def test_a_personal_token_needs_a_scope_that_reads_repositories(
    private: Place, scope: str, status: int
) -> None:
    """The scope for writing repositories is only for git."""
    token = await private.forge.token(private.alice.id, (scope,))
    needed = "The token needs the scope read_repository, read_api or api.\n"
    for path in ("/-/raw/main/README.md", "/-/archive/main/x.zip?path=docs"):
        for sent in ({"PRIVATE-TOKEN": token}, {"Authorization": f"Bearer {token}"}):
            answer = await private.get(path, headers=sent)
            assert (answer.status, answer.status == 200 or answer.body) == (status, status == 200 or needed)


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


async def test_files_are_rate_limited_by_path(forge: Forge, tmp_path: Path) -> None:
    with forge.changed_settings(raw_rate_limit=2, anonymous_archive_rate_limit=1):
        place = await new_place(forge, tmp_path / "work", "public")
        forge.server.app[SERVICES][LIMITS].forget()
        statuses = [
            (await place.get(f"/-/raw/{ref}/README.md")).status for ref in ("main", place.sha, "main")
        ]
        assert statuses == [200, 200, 429]
        assert (await place.get("/-/raw/main/page.html")).status == 200
        assert (await place.get("/-/archive/main/x.zip")).status == 200
        refused = await place.get("/-/archive/main/x.tar")
        assert (refused.status, refused.headers["Retry-After"]) == (429, "60")
        assert (await place.get("/-/archive/main/x.tar", place.alice)).status == 200


def _change_unnoticed(forge: Forge, statement: str, row_id: int) -> None:
    """Change a row as another process of the service, whose notice has not arrived yet."""
    connection = psycopg2.connect(forge.settings.database_url)
    with contextlib.closing(connection), connection, connection.cursor() as cursor:
        cursor.execute("SET LOCAL session_replication_role = replica")  # without triggers
        cursor.execute(statement, (row_id,))


async def test_a_project_that_has_just_become_private_shows_nothing(forge: Forge, tmp_path: Path) -> None:
    """An edge that has been told of this would keep the next answer for everybody."""
    place = await new_place(forge, tmp_path / "work", "public")
    for expected in (200, 404):
        assert (await place.get("/-/raw/main/README.md")).status == expected
        _change_unnoticed(
            forge, "UPDATE projects SET visibility = 'private' WHERE id = %s", place.project["id"]
        )


async def test_the_token_of_a_user_who_has_just_gone_opens_nothing(public: Place) -> None:
    bob = await public.forge.user("bob")
    path = "/-/raw/main/README.md"
    assert (await public.get(path, bob)).status == 200  # the user is cached for a moment
    connection = psycopg2.connect(public.forge.settings.database_url)  # as another process of the service
    with contextlib.closing(connection), connection, connection.cursor() as cursor:
        cursor.execute("DELETE FROM users WHERE id = %s", (bob.id,))
    assert (await public.get(path, bob)).status == 401


STORAGE_TOKEN = "storage-token-of-the-tests"


@pytest.fixture
async def stored(forge: Forge) -> AsyncIterator[Forge]:
    """A server with a configured external storage."""
    storage = {
        "static_objects_external_storage_url": "https://cdn.example.org",
        "static_objects_external_storage_auth_token": STORAGE_TOKEN,
    }
    with forge.changed_settings(raw_rate_limit=1):
        async with forge.instance_settings(**storage):
            yield forge


async def test_users_are_sent_to_the_external_storage(stored: Forge, tmp_path: Path) -> None:
    place = await new_place(stored, tmp_path / "public", "public")
    answer = await place.get("/-/raw/main/b%C3%BCro.xhtml?inline=false&foo=bar&token=flso-x")
    assert answer.status == 401  # an invalid token is never passed on
    answer = await place.get("/-/raw/main/b%c3%bcro%2Exhtml?inline=false&foo=bar")
    assert (answer.status, answer.headers["Location"]) == (
        302,
        f"https://cdn.example.org/{place.path}/-/raw/main/b%c3%bcro%2Exhtml?inline=false",
    )


async def test_the_redirect_of_a_private_object_carries_the_users_own_token(
    stored: Forge, tmp_path: Path
) -> None:
    place = await new_place(stored, tmp_path / "private", "private")
    bob = await stored.user("bob")
    await stored.member("projects", place.project["id"], bob, Role.REPORTER)
    assert (await place.get("/-/archive/main/x.zip")).status == 404  # anonymous callers never get a redirect
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
    for _ in range(3):  # beyond the rate limit, which does not apply to the storage
        assert (await place.get(path, headers=storage | token)).body == "# Hello\n"
    assert (await place.get(path, headers=storage)).status == 404
    wrong = {"X-Service-External-Storage-Token": "wrong"}
    assert (await place.get(path, headers=wrong | token)).status == 403
    await stored.root.post(f"/users/{bob.id}/block")
    assert (await place.get(path, headers=storage | token)).status == 403


async def test_only_a_failed_check_of_an_edge_is_logged(stored: Forge) -> None:
    url = f"{stored.base}{NO_FILE}"
    with capture_logs() as lines:
        for token in (STORAGE_TOKEN, "wrong"):
            await stored.anonymous.get(url, headers={"X-Service-External-Storage-Token": token})
    told = [(line["path"], line["status"]) for line in lines if line["event"] == "request"]
    assert told == [(NO_FILE, 403)]


TEXT = "text/plain; charset=utf-8"
#: Go's results. HTML, XML and text of any charset are `text`.
DETECTED = {
    "text": [
        b"", b"hello\n", b"\tcaf\xc3\xa9\r\n", b"caf\xe9", b"\x1b[31mred\x1b[0m", b"a\x0cb", b"a\x7fb", b"ab\tc",
        b"ab\nc", b"ab\x0cc", b"ab\rc", b"ab\x1bc", b"ab c",
        b"x" * 512 + b"\x00",
        b"x" * 600,
        b"\xff\xfeh\x00i\x00", b"\xfe\xff\x00h\x00i", b"\xff\xfe", b"\xff\xfeh", b"\xff\xfeh\x00", b"\xef\xbb\xbf",
        b"\xef\xbb\xbfhi", b"\xef\xbb\xbf\x00\x01", b"\xff\xfe\x00\x00h\x00\x00\x00", b"<!DOCTYPE HTML>\x00",
        b"<HTML>\x00", b"<HEAD>\x00", b"<SCRIPT>\x00", b"<IFRAME>\x00", b"<H1>\x00", b"<DIV>\x00", b"<FONT>\x00",
        b"<TABLE>\x00", b"<A>\x00", b"<STYLE>\x00", b"<TITLE>\x00", b"<B>\x00", b"<BODY>\x00", b"<BR>\x00",
        b"<P>\x00", b"<!-->\x00", b"<html>", b"<hTmL >\x00", b" \t\r\n\x0c<html>\x00", b"<html",
        b"<!doctype html>\x00", b"<!-- x\x00", b"<?xml version='1.0'?>\x00", b"  <?xml \x00",
        b"\xef\xbb\xbf<html>\x00",
        b" " * 520 + b"<html>\x00",
        b"%PDF", b" %PDF-1.4", b"%!PS", b"OggS", b"1234ftyp is text", b"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxLP",
        b"PK is a name", b"BZh91AY&SY", b"\xca\xfe\xba\xbe", b"!<arch>\n", b'{"a": 1}', b"#!/bin/sh\n",
    ],
    "application/octet-stream": [
        b"ab\x00c", b"ab\x01c", b"ab\x08c", b"ab\x0bc", b"ab\x0ec", b"ab\x1ac", b"ab\x1cc", b"ab\x1fc", b"\x00",
        b"\x08", b"\x0b", b"\x1c",
        b"x" * 511 + b"\x00",
        b"\x00\x00\xfe\xff\x00\x00\x00h", b" \xff\xfeh\x00", b"<html\x00", b"<html/\x00>", b"\x0b<html>\x00",
        b"<!--\x00", b"<?XML \x00", b"GIF88a\x00", b"RIFF\x00\x00\x00\x00WEBP", b"\x89PNG\n\x1a\n", b"\xff\xd8\x00",
        b"II*\x00", b"8BPS\x00\x01", b"\x00\x00\x00\x0cjP  \r\n\x87\n",
        b"\x00\x00\x00 ftypavif\x00\x00\x00\x00avifmif1miafMA1B", b".snd\x00\x00\x00\x18", b'fLaC\x00\x00\x00"',
        b"\x00\x00\x00\x18ftypisom\x00\x00\x02\x00isomiso2", b"\x00\x00\x00\x14ftypqt  \x00\x00\x00\x00qt  ",
        b"\x00\x00\x00\x18ftypisommp41\x00\x00\x00\x00abcd", b"\x00\x00\x00\x18ftypmp42",
        b"\x00\x00\x00\x17ftypmp42\x00\x00\x00\x00isommp4", b"\x00\x00\x00\x00ftypmp42\x00\x00\x00\x00",
        b"\x00\x00\x04\x00ftypmp42" + bytes(1012),
        b"\x00\x00\x00\x10ftypM4V \x00\x00\x00\x01mp42", b"true\x00", b"\x1f\x8b\x00", b"PK\x05\x06\x00",
        b"Rar!\x1a\x07\x01", b"BZh91AY&SY\x00", b"\xfd7zXZ\x00", b"7z\xbc\xaf'\x1c", b"\x7fELF\x02\x01",
        b"MZ\x90\x00",
        b"x" * 257 + b"ustar\x00",
        b"SQLite format 3\x00", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", b"(\xb5/\xfd\x04", b"\x80\x04\x95",
    ],
    "application/pdf": [b"%PDF-1.4"],
    "application/postscript": [b"%!PS-Adobe-3.0"],
    "image/x-icon": [b"\x00\x00\x01\x00abcd", b"\x00\x00\x02\x00abcd", b"\x00\x00\x01\x00ftypmp42" + bytes(248)],
    "image/bmp": [b"BM text that begins so", b"BM\x00", b"BMW"],
    "image/gif": [b"GIF87a", b"GIF89a\x00"],
    "image/webp": [b"RIFF\x00\x00\x00\x00WEBPVP8 ", b"RIFF....WEBPVP"],
    "image/png": [
        b"\x89PNG\r\n\x1a\n\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00",
    ],
    "image/jpeg": [b"\xff\xd8\xff\xe0\x00"],
    "audio/aiff": [b"FORM\x00\x00\x00\x00AIFF"],
    "audio/mpeg": [b"ID3 tags of music", b"ID3\x03\x00"],
    "application/ogg": [b"OggS\x00"],
    "audio/midi": [b"MThd\x00\x00\x00\x06\x00"],
    "video/avi": [b"RIFF\x00\x00\x00\x00AVI LIST"],
    "audio/wave": [b"RIFF\x00\x00\x00\x00WAVEfmt "],
    "video/mp4": [
        b"\x00\x00\x00\x18ftypmp42\x00\x00\x00\x00isommp42",
        b"\x00\x00\x00 ftypisom\x00\x00\x02\x00isomiso2avc1mp41", b"\x00\x00\x00\x0cftypmp42",
    ],
    "video/webm": [b"\x1aE\xdf\xa3\x9f"],
    "application/vnd.ms-fontobject": [
        b"\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01LP",
        b"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxLP",
    ],
    "font/ttf": [b"\x00\x01\x00\x00\x00"],
    "font/otf": [b"OTTO\x00", b"OTTO is a palindrome"],
    "font/collection": [b"ttcf"],
    "font/woff": [b"wOFF"],
    "font/woff2": [b"wOF2"],
    "application/x-gzip": [b"\x1f\x8b\x08\x00"],
    "application/zip": [b"PK\x03\x04\x14\x00"],
    "application/x-rar-compressed": [b"Rar!\x1a\x07\x00", b"Rar!\x1a\x07\x01\x00"],
    "application/wasm": [b"\x00asm\x01\x00\x00\x00"],
}  # fmt: skip


def test_types_are_those_that_go_detects() -> None:
    found = {name: [label(head).media_type for head in heads] for name, heads in DETECTED.items()}
    assert found == {
        name: [TEXT if name == "text" else name] * len(heads) for name, heads in DETECTED.items()
    }


def test_text_pictures_films_and_pdf_are_shown_and_all_else_is_saved() -> None:
    shown = {name for name, heads in DETECTED.items() if label(heads[0]).inline}
    assert shown == {
        "text", "application/pdf", "image/x-icon", "image/bmp", "image/gif", "image/webp", "image/png", "image/jpeg",
        "video/avi", "video/mp4", "video/webm",
    }  # fmt: skip


#: Content that may come before the root element of an SVG.
BEFORE = [
    b"", b"\xef\xbb\xbf", b" \t\r\n\f", b"<!-- a comment -->\n<!---->", b'<?xml version="1.0" encoding="UTF-8"?>\n',
    b"<!DOCTYPE svg>",
    b'\xef\xbb\xbf\n<?XML version="1.0"?><!-- <p> -->\n<!doctype SVG PUBLIC "-//W3C//DTD SVG 1.1//EN">\n<!-- -->\n',
]  # fmt: skip


def test_a_file_that_begins_with_svg_is_svg_which_is_never_shown() -> None:
    for before in BEFORE:
        for root in (b"<svg>", b"<SVG xmlns='x'", b"<svg/>", b"<svg>\0"):
            found = label(before + root)
            assert (before, root, found.media_type, found.inline) == (before, root, "image/svg+xml", False)


#: Texts that contain an SVG, or end before it.
NO_SVG = [
    b"# A readme\n<svg width='1'/>", b"<template><svg></svg></template>",
    b".a { background: url('data:image/svg+xml,<svg/>') }", b"<!DOCTYPE html><svg>", b"<html><svg>",
    b"<!-- <svg> -->", b"<!-- <svg>", b"<?xml version='1.0'?><note/><svg/>", b"<?xml <svg", b"<!DOCTYPE svg <svg",
    b"x<svg>", b"< svg>", b"<sv",
    b" " * SNIFFED_BYTES + b"<svg>",
    b"<!--" + b"-" * SNIFFED_BYTES + b"--><svg>",
    "<svg>".encode("utf-16"),
]  # fmt: skip


def test_svg_in_a_file_does_not_make_it_one() -> None:
    for head in NO_SVG:
        found = label(head)
        assert (head, found.media_type, found.inline) == (head, TEXT, True)


def test_no_beginning_takes_long() -> None:
    """Only the first bytes of any file are looked at."""
    pieces = (b"<!--", b"<!-- -->", b" ", b"<?xml", b"<?xml>", b"<!doctype svg", b"\t<", b"<a ", b"x")
    heads = [piece * (2**20 // len(piece)) for piece in pieces]
    began = time.process_time()
    for head in heads:
        assert label(head).media_type == TEXT
    assert time.process_time() - began < 0.05
