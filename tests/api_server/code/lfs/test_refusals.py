"""What is no request of the LFS API, and what it does not do here."""

import contextlib
import json
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from yarl import URL

from api_server.code.lfs import Refusal, read_batch
from api_server.git.lfs_pointers import Pointer
from tests.api_server.code.lfs.client import LfsClient, Place, named, oid_of
from tests.support.forge import Forge

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
