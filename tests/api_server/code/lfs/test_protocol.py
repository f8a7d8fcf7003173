"""The LFS API as its specification describes it, in plain HTTP, and refused requests."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from yarl import URL

from api_server.code.lfs import Refusal, read_batch
from api_server.git.lfs_pointers import Pointer
from tests.api_server.code.lfs.client import CONTENT, LfsClient, Place, named, oid_of
from tests.support.ci import ci_project, run
from tests.support.forge import Forge
from tests.support.waiting import until


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

    assert await until(lambda: kept(2))  # the first one, and the object of this upload
    sending.cancel()
    await asyncio.gather(sending, return_exceptions=True)
    assert await until(lambda: kept(1))
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


#: A caller, and the answers to: download batch, download, upload batch, upload, verify.
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

    assert await until(gone)
    count = "SELECT count(*) FROM lfs_objects WHERE project_id = %(id)s"
    assert await forge.database.value(count, id=project["id"]) == 0


BAD = [
    (b"{", 400, "The body is not JSON."),
    (b"[]", 422, "The body is not a batch request."),
    (b'{"operation": "delete", "objects": []}', 422, "operation has to be download or upload."),
    (b'{"operation": "upload"}', 422, "objects has to be a list."),
    (
        b'{"operation": "upload", "objects": [], "transfers": ["tus"]}',
        422,
        "The only transfer adapter here is basic.",
    ),
    (
        b'{"operation": "upload", "objects": [], "hash_algo": "sha512"}',
        409,
        "The only hash_algo here is sha256.",
    ),
    (
        b'{"operation": "upload", "objects": [{"oid": "../x", "size": 1}]}',
        422,
        "oid has to be a SHA-256 in lower-case hexadecimal digits.",
    ),
    (
        b'{"operation": "upload", "objects": [{"oid": "%s", "size": true}]}' % (b"0" * 64),
        422,
        "size has to be a number of bytes.",
    ),
    (
        b'{"operation": "upload", "objects": [%s]}' % b",".join([b"1"] * 1001),
        413,
        "A batch names 1000 objects at most.",
    ),
    (
        b'{"operation": "upload", "objects": [%s]}' % bytes(2**18).replace(b"\0", b" "),
        413,
        "Maximum request body size 262144 exceeded.",
    ),
]


@pytest.mark.parametrize(("body", "status", "message"), BAD, ids=[message for *_, message in BAD])
async def test_requests_that_make_no_sense_are_refused_in_words(
    place: Place, body: bytes, status: int, message: str
) -> None:
    answer = await place.client.request("POST", "/objects/batch", data=body)
    assert (answer.status, answer.body) == (status, {"message": message})


_ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)
_ALMOST = st.fixed_dictionaries(
    {"operation": st.sampled_from(["upload", "download"]), "objects": _ANYTHING | st.lists(_ANYTHING)},
    optional={"transfers": _ANYTHING, "hash_algo": _ANYTHING},
)


@given(sent=_ANYTHING | _ALMOST)
def test_whatever_json_is_sent_is_a_batch_or_refused(sent: Any) -> None:
    with contextlib.suppress(Refusal):
        batch = read_batch(json.dumps(sent).encode())
        assert batch.operation == sent["operation"]
        assert all(isinstance(each, Pointer) and each.size >= 0 for each in batch.objects)


async def test_objects_beyond_the_operators_limit_are_refused_before_they_are_sent(
    forge: Forge,
) -> None:
    with forge.changed_settings(lfs_limit=10):
        client = LfsClient.of(forge, await forge.project(), None)
        client = attrs.evolve(client, token=forge.root.token)
        text = "The object is larger than the 10 bytes that this server takes."
        answered = (await client.batch("upload", named(b"x" * 11))).body["objects"]
        assert answered == [named(b"x" * 11) | {"error": {"code": 422, "message": text}}]
        sent = await client.request("PUT", f"/objects/{oid_of(b'x' * 11)}/11", data=b"x" * 11)
        assert (sent.status, sent.body) == (413, {"message": text})
        await client.bring(b"x" * 10)


async def test_locking_is_said_not_to_be_there(place: Place) -> None:
    for method, path in (("POST", "/locks/verify"), ("GET", "/locks"), ("POST", "/locks/1/unlock")):
        answer = await place.client.request(method, path)
        assert (answer.status, answer.body) == (501, {"message": "This server does not lock files."})


@pytest.mark.parametrize("path", ["a%00b/c", "%ff/c", "a/" + "x" * 3000, "..%2f..%2fetc"])
async def test_paths_that_no_project_has_are_refused_like_any_other(forge: Forge, path: str) -> None:
    base = f"{forge.base}/{path}.git"
    objects = f"{base}/info/lfs/objects"
    for method, url in (
        ("GET", f"{base}/info/refs?service=git-upload-pack"),
        ("POST", f"{objects}/batch"),
        ("GET", f"{objects}/{'0' * 64}"),
        ("PUT", f"{objects}/{'0' * 64}/5"),
    ):
        async with forge.session.request(method, URL(url, encoded=True)) as answer:
            assert answer.status == 401, url
