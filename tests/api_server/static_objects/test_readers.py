"""Who may read what, by which token, and how often."""

import contextlib
from pathlib import Path

import psycopg2
import pytest

from api_server.static_objects.access import LIMITS
from tests.api_server.static_objects.places import Place, new_place
from tests.support.forge import Forge


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
    """What writes repositories is for git alone."""
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
        forge.server.app[LIMITS].forget()
        statuses = [
            (await place.get(f"/-/raw/{ref}/README.md")).status for ref in ("main", place.sha, "main")
        ]
        assert statuses == [200, 200, 429]
        assert (await place.get("/-/raw/main/page.html")).status == 200
        assert (await place.get("/-/archive/main/x.zip")).status == 200
        refused = await place.get("/-/archive/main/x.tar")
        assert (refused.status, refused.headers["Retry-After"]) == (429, "60")
        assert (await place.get("/-/archive/main/x.tar", place.alice)).status == 200


async def test_the_token_of_a_user_who_has_just_gone_opens_nothing(public: Place) -> None:
    bob = await public.forge.user("bob")
    path = "/-/raw/main/README.md"
    assert (await public.get(path, bob)).status == 200  # who that is, is remembered for a moment
    connection = psycopg2.connect(public.forge.settings.database_url)  # as another process of the service
    with contextlib.closing(connection), connection, connection.cursor() as cursor:
        cursor.execute("DELETE FROM users WHERE id = %s", (bob.id,))
    assert (await public.get(path, bob)).status == 401
