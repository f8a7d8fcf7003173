"""The LFS API as its specification describes it, in plain HTTP."""

import asyncio
from collections.abc import AsyncIterator

import attrs
import pytest

from tests.api_server.code.lfs.client import CONTENT, LfsClient, Place, named, oid_of
from tests.support.ci import ci_project, eventually, run
from tests.support.forge import Forge


async def stored_keys(forge: Forge, project_id: int) -> list[str]:
    folder = forge.settings.data_dir / "objects" / "projects" / str(project_id) / "lfs"
    return [str(file) for file in folder.glob("*")] if folder.exists() else []


async def test_a_batch_names_where_to_bring_what_is_missing_and_nothing_for_what_is_there(
    place: Place, forge: Forge
) -> None:
    new = b"new"
    answer = await place.client.batch("upload", named(CONTENT), named(new))
    header = place.client.authorization
    assert answer.headers["Content-Type"].startswith("application/vnd.git-lfs+json")
    assert (answer.status, answer.body) == (
        200,
        {
            "transfer": "basic",
            "hash_algo": "sha256",
            "objects": [
                named(CONTENT),
                named(new)
                | {
                    "authenticated": True,
                    "actions": {
                        "upload": {
                            "href": f"{place.client.url}/objects/{oid_of(new)}/3",
                            "header": header | {"Content-Type": "application/octet-stream"},
                        },
                        "verify": {"href": f"{place.client.url}/verify", "header": header},
                    },
                },
            ],
        },
    )


async def test_a_batch_names_where_to_fetch_what_is_there(place: Place) -> None:
    answer = await place.client.batch(
        "download", named(CONTENT), named(b"gone"), named(CONTENT) | {"size": 1}, transfers=["basic", "ssh"]
    )
    missing = {"error": {"code": 404, "message": "The object does not exist."}}
    link = {"href": f"{place.client.url}/objects/{oid_of(CONTENT)}", "header": place.client.authorization}
    assert answer.body["objects"] == [
        named(CONTENT) | {"authenticated": True, "actions": {"download": link}},
        named(b"gone") | missing,
        named(CONTENT) | {"size": 1} | missing,
    ]
    got = await place.client.act(link, "GET")
    assert (got.status, got.body) == (200, CONTENT)
    assert got.headers["Content-Type"] == "application/octet-stream"
    assert got.headers["Content-Security-Policy"] == "default-src 'none'; sandbox"


async def test_a_download_that_broke_off_is_taken_up_where_it_ended(place: Place) -> None:
    url = f"/objects/{oid_of(CONTENT)}"
    rest = await place.client.request("GET", url, headers={"Range": "bytes=1000-"})
    assert (rest.status, rest.body) == (206, CONTENT[1000:])
    assert rest.headers["Content-Range"] == f"bytes 1000-{len(CONTENT) - 1}/{len(CONTENT)}"
    beyond = await place.client.request("GET", url, headers={"Range": f"bytes={len(CONTENT)}-"})
    assert (beyond.status, beyond.headers["Content-Range"]) == (416, f"bytes */{len(CONTENT)}")
    head = await place.client.request("HEAD", url)
    assert (head.status, head.headers["Content-Length"]) == (200, str(len(CONTENT)))
    same = await place.client.request("GET", url, headers={"If-None-Match": head.headers["ETag"]})
    assert (same.status, same.body) == (304, b"")


@pytest.mark.parametrize(
    "sent",
    [b"other content", CONTENT[:-1], CONTENT + b"x", b""],
    ids=["other", "too short", "too long", "nothing"],
)
async def test_what_is_not_what_was_announced_never_exists(place: Place, forge: Forge, sent: bytes) -> None:
    wanted = CONTENT.replace(b"a", b"b")
    before = await stored_keys(forge, place.project["id"])
    url = f"/objects/{oid_of(wanted)}/{len(wanted)}"
    answer = await place.client.request("PUT", url, data=sent)
    assert (answer.status, answer.body) == (
        422,
        {"message": "The content is not what its oid and size say."},
    )
    assert await stored_keys(forge, place.project["id"]) == before
    verified = await place.client.send_json("/verify", named(wanted))
    assert (verified.status, verified.body) == (404, {"message": "The object does not exist."})


async def test_what_is_brought_twice_is_kept_once(place: Place, forge: Forge) -> None:
    url = f"/objects/{oid_of(CONTENT)}/{len(CONTENT)}"
    assert (await place.client.request("PUT", url, data=CONTENT)).status == 200
    assert len(await stored_keys(forge, place.project["id"])) == 1
    assert (await place.client.request("GET", f"/objects/{oid_of(CONTENT)}")).body == CONTENT


async def test_what_several_bring_at_once_is_kept_once(place: Place, forge: Forge) -> None:
    new = b"new" * 100_000
    url = f"/objects/{oid_of(new)}/{len(new)}"
    answers = await asyncio.gather(*(place.client.request("PUT", url, data=new) for _ in range(4)))
    assert [answer.status for answer in answers] == [200] * 4
    assert len(await stored_keys(forge, place.project["id"])) == 2
    assert (await place.client.request("GET", f"/objects/{oid_of(new)}")).body == new


async def test_nothing_stays_of_an_upload_that_breaks_off(place: Place, forge: Forge) -> None:
    begun = asyncio.Event()

    async def half() -> AsyncIterator[bytes]:
        yield b"x" * 8_000_000
        begun.set()
        await asyncio.sleep(60)

    sending = asyncio.create_task(place.client.request("PUT", f"/objects/{'0' * 64}/16000000", data=half()))
    await begun.wait()

    async def kept(count: int) -> bool:
        return len(await stored_keys(forge, place.project["id"])) == count

    assert await eventually(lambda: kept(2))  # the first, and what has come of this one
    sending.cancel()
    await asyncio.gather(sending, return_exceptions=True)
    assert await eventually(lambda: kept(1))
    assert (
        "error"
        in (await place.client.batch("download", {"oid": "0" * 64, "size": 16_000_000})).body["objects"][0]
    )


async def test_an_empty_object_is_one_too(place: Place) -> None:
    await place.client.bring(b"")
    assert (await place.client.request("GET", f"/objects/{oid_of(b'')}")).body == b""


async def test_projects_do_not_see_each_others_objects(place: Place, forge: Forge) -> None:
    other = LfsClient.of(forge, await forge.project(place.owner), place.owner)
    assert (await other.request("GET", f"/objects/{oid_of(CONTENT)}")).status == 404
    assert "error" in (await other.batch("download", named(CONTENT))).body["objects"][0]
    assert "actions" in (await other.batch("upload", named(CONTENT))).body["objects"][0]


#: Who, and the answers to: download batch, download, upload batch, upload, verify.
ROLES = [
    ("stranger", 404, 404, 404, 404, 404),
    ("guest", 403, 403, 403, 403, 403),
    ("reporter", 200, 200, 403, 403, 403),
    ("developer", 200, 200, 200, 200, 200),
    ("maintainer", 200, 200, 200, 200, 200),
    ("owner", 200, 200, 200, 200, 200),
    (None, 401, 401, 401, 401, 401),
]


async def answers(client: LfsClient) -> list[int]:
    oid, size = oid_of(CONTENT), len(CONTENT)
    return [
        (await client.batch("download", named(CONTENT))).status,
        (await client.request("GET", f"/objects/{oid}")).status,
        (await client.batch("upload", named(CONTENT))).status,
        (await client.request("PUT", f"/objects/{oid}/{size}", data=CONTENT)).status,
        (await client.send_json("/verify", named(CONTENT))).status,
    ]


async def test_who_may_fetch_downloads_and_who_may_push_uploads(place: Place, forge: Forge) -> None:
    people = await forge.people(place.project["id"])
    for name, *expected in ROLES:
        client = LfsClient.of(forge, place.project, people[name] if name else None)
        assert await answers(client) == expected, name


async def test_a_public_project_is_downloaded_from_without_credentials(place: Place, forge: Forge) -> None:
    await place.owner.api.put(f"/projects/{place.project['id']}", {"visibility": "public"})
    nobody = LfsClient.of(forge, place.project)
    assert await answers(nobody) == [200, 200, 401, 401, 401]
    link = (await nobody.batch("download", named(CONTENT))).body["objects"][0]["actions"]["download"]
    assert link["header"] == {}
    refused = await nobody.batch("upload", named(b"new"))
    challenge = 'Basic realm="forgelet"'
    assert refused.headers["LFS-Authenticate"] == refused.headers["WWW-Authenticate"] == challenge
    assert refused.headers["Content-Type"].startswith("application/vnd.git-lfs+json")
    assert set(refused.body) == {"message"}


async def test_scopes_archived_projects_closed_repositories_and_blocked_users(
    place: Place, forge: Forge
) -> None:
    def with_token(token: str) -> LfsClient:
        return attrs.evolve(place.client, token=token)

    path = f"/projects/{place.project['id']}"
    reads = with_token(await forge.token(place.owner.id, ("read_repository",)))
    assert await answers(reads) == [200, 200, 403, 403, 403]
    neither = with_token(await forge.token(place.owner.id, ("read_user",)))
    assert await answers(neither) == [403] * 5
    assert await answers(with_token("flpat-no")) == [401] * 5
    await place.owner.api.post(f"{path}/archive")
    assert await answers(place.client) == [200, 200, 403, 403, 403]
    refused = await place.client.batch("upload", named(CONTENT))
    assert refused.body == {"message": "The repository is archived: nothing can be pushed to it."}
    await place.owner.api.post(f"{path}/unarchive")
    await place.owner.api.put(path, {"repository_access_level": "disabled"})
    assert await answers(place.client) == [404] * 5
    await forge.root.post(f"/users/{place.owner.id}/block")
    assert await answers(place.client) == [403] * 5


async def test_a_project_is_found_by_the_path_it_had(place: Place, forge: Forge) -> None:
    moved = await place.owner.api.put(
        f"/projects/{place.project['id']}", {"path": f"{place.project['path']}-b"}
    )
    link = (await place.client.batch("download", named(CONTENT))).body["objects"][0]["actions"]["download"]
    assert f"/{moved.body['path_with_namespace']}.git/" in link["href"]
    assert (await place.client.act(link, "GET")).body == CONTENT


async def test_a_running_job_fetches_with_its_token_and_brings_nothing(forge: Forge) -> None:
    project = await ci_project(forge)
    client = LfsClient(forge, project.path, project.developer.token)
    await client.bring(CONTENT)
    token = await run(forge, (await project.job())["id"])
    assert await answers(attrs.evolve(client, token=token)) == [200, 200, 403, 403, 403]


async def test_deleting_a_project_deletes_its_objects(forge: Forge) -> None:
    alice = await forge.user("alice")
    project = await forge.project(alice)
    await LfsClient.of(forge, project, alice).bring(CONTENT)
    assert len(await stored_keys(forge, project["id"])) == 1
    assert (await alice.api.delete(f"/projects/{project['id']}")).status == 202

    async def gone() -> bool:
        return not await stored_keys(forge, project["id"])

    assert await eventually(gone)
    count = "SELECT count(*) FROM lfs_objects WHERE project_id = %(id)s"
    assert await forge.database.value(count, id=project["id"]) == 0
