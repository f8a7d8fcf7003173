"""Text is compressed once for clients that accept it; each representation has its own entity tag (RFC 9110)."""

import gzip
import hashlib
from pathlib import Path

import pytest

from storage_edge.client.handlers import STORE
from storage_edge.rules import coding
from storage_edge.storage.bodies import MemoryBody
from tests.storage_edge.conftest import RAW, Answer, Edge, Origin, StartEdge
from tests.storage_edge.origins import head, talk

TEXT = b"".join(b"line %d of a text that gets smaller\n" % number for number in range(2000))
TAG = '"v1"'
CODED_TAG = coding.tag(TAG)


async def _stored(edge: Edge, origin: Origin, **answer: str) -> None:
    """Store the origin's text in memory."""
    fields = {"Content_Type": "text/plain; charset=utf-8", **answer}
    origin.answers(TEXT, **fields)  # type: ignore[arg-type]
    await edge.get(RAW, Accept_Encoding="identity")
    await edge.settled()


async def _get(edge: Edge, accepted: str = "gzip, deflate, br", method: str = "GET", **fields: str) -> Answer:
    return await edge.get(RAW, method, Accept_Encoding=accepted, **fields)


async def test_text_is_compressed_for_those_who_take_it(edge: Edge, origin: Origin) -> None:
    await _stored(edge, origin)
    coded, plain = await _get(edge), await _get(edge, "identity")
    assert gzip.decompress(coded.body) == plain.body == TEXT
    assert len(coded.body) < len(TEXT) / 4
    assert (coded.headers["Content-Encoding"], coded.headers["ETag"]) == ("gzip", CODED_TAG)
    assert int(coded.headers["Content-Length"]) == len(coded.body)
    assert "Content-Encoding" not in plain.headers
    assert plain.headers["ETag"] == TAG
    assert coded.headers["Vary"] == plain.headers["Vary"] == "Accept-Encoding"
    assert "; hit" in coded.cache_status
    assert len(origin.requests) == 1


async def test_it_is_compressed_once_also_for_a_crowd_and_after_a_validation(
    start_edge: StartEdge, origin: Origin, clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []
    compress = coding.compress
    monkeypatch.setattr(coding, "compress", lambda data: made.append(1) or compress(data))
    edge = await start_edge()
    await _stored(edge, origin)
    async with talk(edge.port) as one, talk(edge.port) as two:
        request = head(RAW, "Accept-Encoding: gzip")
        one.writer.write(request)
        two.writer.write(request)
        first = await one.answer()
        assert first.partition(b"\r\n\r\n")[2] == (await two.answer()).partition(b"\r\n\r\n")[2]
        for _ in range(3):
            assert b"Content-Encoding: gzip" in await one.ask(request)
    clock.advance(61)  # type: ignore[attr-defined]
    assert "fwd-status=304" in (await _get(edge)).cache_status
    assert (await _get(edge)).headers["Content-Encoding"] == "gzip"
    assert len(made) == 1


async def test_head_of_what_is_not_stored_says_what_get_would(edge: Edge, origin: Origin) -> None:
    for cache_control, type_, vary in (
        ("public, max-age=60", "text/plain", "Accept-Encoding"),
        ("public, max-age=60", "application/zip", None),
        ("private, max-age=60", "text/plain", None),
        ("public, max-age=60, no-transform", "text/plain", None),
    ):
        origin.answers(TEXT, cache_control=cache_control, Content_Type=type_)
        path = f"{RAW}-{cache_control[:3]}-{type_[:3]}-{len(cache_control)}"
        head, get = await edge.get(path, "HEAD"), await edge.get(path)
        assert head.headers.get("Vary") == get.headers.get("Vary") == vary, (cache_control, type_)


async def test_head_says_what_get_would(edge: Edge, origin: Origin) -> None:
    await _stored(edge, origin)
    for accepted in ("gzip", "identity"):
        get, only_head = await _get(edge, accepted), await _get(edge, accepted, "HEAD")
        for name in ("Content-Length", "Content-Encoding", "ETag", "Vary", "Content-Type"):
            assert get.headers.get(name) == only_head.headers.get(name), name
        assert only_head.body == b""


@pytest.mark.parametrize(
    ("accepted", "named", "status", "tag"),
    [
        ("gzip", CODED_TAG, 304, CODED_TAG),
        ("gzip", TAG, 304, TAG),  # it has that one: there is no reason to send the other
        ("gzip", f"{TAG}, {CODED_TAG}", 304, CODED_TAG),
        ("gzip", '"other"', 200, CODED_TAG),
        ("gzip", "*", 304, CODED_TAG),
        ("identity", TAG, 304, TAG),
        ("identity", CODED_TAG, 200, TAG),
        ("gzip", f"W/{CODED_TAG}", 304, CODED_TAG),
    ],
)
async def test_if_none_match_is_about_one_representation(
    edge: Edge, origin: Origin, accepted: str, named: str, status: int, tag: str
) -> None:
    await _stored(edge, origin)
    answer = await _get(edge, accepted, If_None_Match=named)
    assert (answer.status, answer.headers["ETag"]) == (status, tag)
    assert answer.headers["Vary"] == "Accept-Encoding"
    assert ("Content-Encoding" in answer.headers) == (status == 200 and tag == CODED_TAG)


async def test_a_weak_tag_stays_weak_and_a_missing_one_missing(start_edge: StartEdge, origin: Origin) -> None:
    edge = await start_edge()
    origin.answers(TEXT, etag='W/"v1"', Content_Type="application/json")
    await edge.get(RAW)
    await edge.settled()
    assert (await _get(edge)).headers["ETag"] == f"W/{CODED_TAG}"
    assert coding.tag("odd") == "odd"


@pytest.mark.parametrize(
    ("if_range", "status", "encoding"),
    [
        (None, 206, None),
        (CODED_TAG, 206, "gzip"),
        (TAG, 206, None),
        ('"other"', 200, None),
        ("Sun, 06 Nov 1994 08:49:37 GMT", 200, None),  # it is unknown which of them is meant
    ],
)
async def test_parts_are_of_the_representation_that_is_named(
    edge: Edge, origin: Origin, if_range: str | None, status: int, encoding: str | None
) -> None:
    await _stored(edge, origin, Last_Modified="Sun, 06 Nov 1994 08:49:37 GMT")
    whole = (await _get(edge)).body if encoding else TEXT
    fields = {"Range": "bytes=10-19"} | ({} if if_range is None else {"If_Range": if_range})
    answer = await _get(edge, **fields)
    assert (answer.status, answer.headers.get("Content-Encoding")) == (status, encoding)
    if status == 206:
        assert answer.body == whole[10:20]
        assert answer.headers["Content-Range"] == f"bytes 10-19/{len(whole)}"
    else:
        assert answer.body == TEXT


@pytest.mark.parametrize(
    ("fields", "cache_control"),
    [
        ({"Content_Type": "application/zip"}, None),
        ({"Content_Type": "image/png"}, None),
        ({}, "public, max-age=60, no-transform"),
        ({"Content_Encoding": "gzip"}, None),
        ({"Content_Digest": "sha-256=:AAAA:"}, None),
    ],
)
async def test_what_must_not_or_need_not_be_changed_is_not(
    edge: Edge, origin: Origin, fields: dict[str, str], cache_control: str | None
) -> None:
    given = {"Content_Type": "text/plain", **fields}
    origin.answers(TEXT, cache_control=cache_control or "public, max-age=60", **given)  # type: ignore[arg-type]
    await edge.get(RAW)
    await edge.settled()
    answer = await _get(edge)
    assert (answer.body, answer.headers["ETag"], "Vary" in answer.headers) == (TEXT, TAG, False)
    assert answer.headers.get("Content-Encoding") == fields.get("Content_Encoding")


async def test_small_large_and_incompressible_ones_are_not(start_edge: StartEdge, origin: Origin) -> None:
    edge = await start_edge(compress_from=2000, memory_object_bytes=100_000)
    noise = hashlib.shake_128(b"").digest(5000)
    for name, body in {"small": TEXT[:1999], "large": TEXT * 2, "noise": noise}.items():
        origin.answers(body, etag=f'"{name}"', Content_Type="text/plain")
        for _ in range(2):
            answer = await edge.get(f"/group/app/-/raw/main/{name}", Accept_Encoding="gzip")
            await edge.settled()
        assert (answer.body, "Content-Encoding" in answer.headers) == (body, False), name


async def test_it_can_be_turned_off(start_edge: StartEdge, origin: Origin) -> None:
    edge = await start_edge(compress_from=0)
    await _stored(edge, origin)
    answer = await _get(edge)
    assert (answer.body, "Vary" in answer.headers) == (TEXT, False)


async def test_private_text_never_is(edge: Edge, origin: Origin) -> None:
    origin.answers(TEXT, cache_control="private, max-age=60", Content_Type="text/plain")
    for _ in range(3):
        answer = await edge.get(f"{RAW}?token=flso-1", Accept_Encoding="gzip")
        await edge.settled()
        assert (answer.body, "Content-Encoding" in answer.headers) == (TEXT, False)
    origin.answers(TEXT, Content_Type="text/plain")
    await edge.get(f"{RAW}2")
    await edge.settled()
    with_token = await edge.get(f"{RAW}2?token=flso-1", Accept_Encoding="gzip")
    assert "Content-Encoding" not in with_token.headers


async def test_a_purge_drops_it_as_well(edge: Edge, origin: Origin) -> None:
    await _stored(edge, origin)
    await _get(edge)
    origin.answers(b"new " * 2000, etag='"v2"', Content_Type="text/plain")
    await edge.purge(urls=[RAW])
    await _get(edge)
    await edge.settled()
    assert gzip.decompress((await _get(edge)).body) == b"new " * 2000


async def test_its_bytes_count_in_the_budget_of_memory(start_edge: StartEdge, origin: Origin) -> None:
    edge = await start_edge()
    await _stored(edge, origin)
    memory = edge.app[STORE].memory
    before = memory.used
    coded = await _get(edge)
    assert memory.used == before + len(coded.body)
    ((stored,),) = [memory.get(target) for target in memory._variants]
    assert isinstance(stored.body, MemoryBody)


@pytest.mark.parametrize(
    ("accepted", "takes"),
    [
        ([], False), ([""], False), (["gzip"], True), (["x-gzip"], True), (["*"], True), (["br, GZIP;q=0.5"], True),
        (["gzip;q=0"], False), (["gzip;q=0, *"], False), (["identity, gzip;q=0.5"], False), (["*;q=0"], False),
        (["identity;q=0.2, gzip;q=0.2"], True), (["br", "gzip"], True), (["gzip;q=x"], False), (["deflate"], False),
        (["identity;q=0"], False), (["gzip; q=1.0"], True),
    ],
)  # fmt: skip
def test_who_takes_gzip(accepted: list[str], takes: bool) -> None:
    assert coding.takes_gzip(accepted) is takes


def test_the_same_bytes_come_out_each_time(tmp_path: Path) -> None:
    assert coding.compress(TEXT) == coding.compress(TEXT)
    assert gzip.decompress(coding.compress(b"")) == b""
