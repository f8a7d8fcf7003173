"""Plain requests for objects in memory are answered at once, with the same answers as other requests."""

import re

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from storage_edge.client.handlers import CONNECTIONS
from tests.storage_edge.conftest import RAW, STORAGE_TOKEN, Clock, Edge, Origin, StartEdge
from tests.storage_edge.origins import Project, head, talk

#: It differs in every answer.
_REQUEST_ID = re.compile(rb"X-Request-Id: \S+\r\n")


#: A header field that makes a request ordinary, without any other effect.
ORDINARY = "X-Any: y"


def at_once(edge: Edge) -> int:
    """Return the number of requests that were answered without the ordinary reading."""
    return edge.app[CONNECTIONS].plain.answered


def same_fields(answer: bytes) -> tuple[bytes, list[bytes], bytes]:
    """Return an answer without its id, and without the order of its fields."""
    answer_head, _, body = _REQUEST_ID.sub(b"", answer).partition(b"\r\n\r\n")
    status, *lines = answer_head.split(b"\r\n")
    return status, sorted(lines), body


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("type_", ["application/zip", "text/plain"])
async def test_a_plain_request_gets_the_ordinary_answer_with_its_age(
    edge: Edge, origin: Origin, clock: Clock, method: str, type_: str
) -> None:
    body = b"hello " * 1000
    origin.answers(
        body, Content_Type=type_, Content_Disposition='attachment; filename="a"', Surrogate_Key="a"
    )
    await edge.get(RAW)
    await edge.settled()
    for fields in [(), ("Accept-Encoding: gzip",)]:
        await edge.get(RAW, Accept_Encoding="gzip")  # it is compressed at the first request for it
        for age in (0, 7):
            clock.advance(age)
            async with talk(edge.port) as client:
                before = at_once(edge)
                ordinary = await client.ask(head(RAW, ORDINARY, *fields, method=method))
                assert at_once(edge) == before
                plain = await client.ask(head(RAW, *fields, method=method))
                assert at_once(edge) == before + 1
            assert same_fields(plain) == same_fields(ordinary)
            assert _REQUEST_ID.search(plain) is not None
            assert (b"content-encoding: gzip" in plain.lower()) == (bool(fields) and type_ == "text/plain")
            assert plain.endswith(b"\r\n\r\n") == (method == "HEAD")
    assert len(origin.requests) == 1


async def test_no_two_heads_need_be_the_same(edge: Edge, origin: Origin) -> None:
    origin.answers(b"hello")
    await edge.get(RAW)
    await edge.settled()
    async with talk(edge.port) as client:
        for number in range(40):
            request = head(RAW, f"User-Agent: browser {number}", f"X-Request-Id: {number:08}")
            answer = await client.ask(request)
            assert answer.endswith(b"hello")
            assert b"%08d" % number not in answer  # ids of clients are not used
    assert at_once(edge) == 40


async def test_who_is_believed_may_name_a_plain_request(start_edge: StartEdge, origin: Origin) -> None:
    edge = await start_edge(trusted_proxies=["127.0.0.1"])
    origin.answers(b"hello")
    await edge.get(RAW)
    await edge.settled()
    async with talk(edge.port) as client:
        answer = await client.ask(head(RAW, "X-Request-Id: 0123456789", "X-Forwarded-For: 192.0.2.7"))
    assert b"X-Request-Id: 0123456789\r\n" in answer
    assert at_once(edge) == 1


async def test_a_plain_request_counts_like_others(edge: Edge, origin: Origin) -> None:
    origin.answers(b"hello")
    async with talk(edge.port) as client:
        received = 0
        for _ in range(5):
            received += len(await client.ask(head()))
            await edge.settled()
    metrics = (await edge.get("/-/metrics")).body.decode()
    assert 'edge_requests_total{kind="raw",outcome="hit"} 4.0' in metrics
    assert f"edge_sent_bytes_total {received}.0" in metrics


@pytest.mark.parametrize("soft", [False, True])
async def test_a_plain_request_obeys_purges_and_lifetimes(
    edge: Edge, origin: Origin, clock: Clock, soft: bool
) -> None:
    origin.answers(b"old", etag='"1"')
    async with talk(edge.port) as client:
        for _ in range(3):
            await client.ask(head())
            await edge.settled()
        origin.answers(b"new", etag='"2"')
        await edge.purge(urls=[RAW], soft=soft)
        assert (await client.ask(head())).endswith(b"new")
        await edge.settled()
        assert b"; hit" in await client.ask(head())
        origin.answers(b"newer", etag='"3"')
        clock.advance(61)
        assert (await client.ask(head())).endswith(b"newer")
    assert len(origin.requests) == 3


@pytest.mark.parametrize(
    ("target", "fields"),
    [
        (RAW, ("Range: bytes=1-2",)),
        (RAW, ('If-None-Match: "v1"',)),
        (RAW, ("If-Modified-Since: Thu, 01 Jan 2099 00:00:00 GMT",)),
        (RAW, ("Cache-Control: no-cache",)),
        (RAW, ("Content-Length: 5",)),
        (RAW, ("Transfer-Encoding: chunked",)),
        (RAW, ("Connection: close",)),
        (RAW, ("Expect: 100-continue",)),
        (RAW, ("Connection: Upgrade", "Upgrade: websocket")),
        (RAW, ("Accept: " + "y" * 8190,)),
        (RAW, ("Cookie: session=1",)),
        (RAW, ("Authorization: Bearer x",)),
        (RAW, ("Private-Token: x",)),
        (RAW, (f"X-Service-External-Storage-Token: {STORAGE_TOKEN}",)),
        (RAW, ("X-Service-Static-Object-Token: x",)),
        (RAW + "?token=flso-alice", ()),
        (RAW + "?inline=x&%74oken=flso-alice", ()),
        ("/-/status", ()),
        ("/-/stored", ()),
    ],
)
async def test_whatever_may_have_another_answer_is_never_answered_at_once(
    edge: Edge, origin: Origin, target: str, fields: tuple[str, ...]
) -> None:
    origin.answers(b"hello")
    await edge.get(RAW)
    await edge.settled()
    for _ in range(2):
        async with talk(edge.port) as client:
            await client.ask(head(target, *fields))
    assert at_once(edge) == 0


@pytest.mark.parametrize("control", ["private, max-age=60", "no-cache", 'no-cache="etag"', "max-age=0"])
async def test_what_is_not_for_everybody_or_has_to_be_validated_is_never_answered_at_once(
    edge: Edge, origin: Origin, control: str
) -> None:
    origin.answers(b"hello", cache_control=control)
    for target in (RAW + "?token=alice", RAW, RAW):
        async with talk(edge.port) as client:
            await client.ask(head(target))
        await edge.settled()
    assert at_once(edge) == 0


async def test_who_asks_too_often_is_refused(start_edge: StartEdge, origin: Origin) -> None:
    edge = await start_edge(client_rate=0.01, client_burst=3)
    origin.answers(b"hello")
    async with talk(edge.port) as client:
        for status in (200, 200, 200, 429):
            assert (await client.ask(head())).startswith(b"HTTP/1.1 %d" % status)
            await edge.settled()
    assert at_once(edge) == 2


async def test_a_reload_asks_the_origin_each_time(edge: Edge, origin: Origin) -> None:
    origin.answers(b"hello")
    async with talk(edge.port) as client:
        for _ in range(4):
            assert (await client.ask(head(RAW, "Cache-Control: no-cache"))).endswith(b"hello")
            await edge.settled()
    assert len(origin.requests) == 4


async def test_a_private_object_is_asked_for_each_time(edge: Edge, origin: Origin) -> None:
    origin.answers(b"secret", cache_control="private, max-age=60")
    async with talk(edge.port) as client:
        for _ in range(4):
            assert (await client.ask(head(RAW + "?token=flso-alice"))).endswith(b"secret")
            await edge.settled()
    assert len(origin.requests) == 4
    assert at_once(edge) == 0


async def test_a_request_that_was_answered_while_a_project_was_public_is_not_once_it_is_private(
    edge: Edge, origin: Origin, clock: Clock
) -> None:
    project = Project(origin, public=True, readers={"alice"})
    async with talk(edge.port) as client:
        for _ in range(3):
            assert (await client.ask(head())).endswith(project.body)
            await edge.settled()
        assert at_once(edge) == 2
        project.public, project.body, project.version = False, b"for alice", 2
        clock.advance(120)
        assert (await edge.get(f"{RAW}?token=alice")).body == b"for alice"
        await edge.settled()
        answer = await client.ask(head())
    assert answer.startswith(b"HTTP/1.1 404")
    assert b"alice" not in answer


STEPS = st.one_of(
    st.sampled_from([0.0, 0.25, 0.999, 1.0, 3.5, 9.99, 10.0, -0.5, -20.0]).map(
        lambda seconds: ("wait", seconds)
    ),
    st.sampled_from([("purge", True), ("purge", False), ("change", ""), ("ask", ""), ("ask", "gzip")]),
)


@given(st.lists(STEPS, max_size=12))
@example([("ask", "gzip"), ("wait", 0.999), ("ask", "")])  # the cached answer depends on its ttl
@settings(
    max_examples=settings().max_examples // 2,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
async def test_whatever_happens_a_plain_request_gets_the_ordinary_answer(
    edge: Edge, origin: Origin, clock: Clock, steps: list[tuple[str, object]]
) -> None:
    """Sent answers are cached until Age, freshness or the stored object changes."""
    version = 0

    def change() -> None:
        body = b"version %d " % version * 1000
        control = f"max-age={10 + version % 2}"
        origin.answers(body, 200, control, f'"{version}"', Content_Type="text/plain")

    change()
    await edge.purge(urls=[RAW])
    async with talk(edge.port) as client:
        for what, how in [*steps, ("ask", ""), ("ask", "gzip")]:
            if what == "wait":
                clock.advance(float(str(how)))
            elif what == "purge":
                await edge.purge(urls=[RAW], soft=how)
            elif what == "change":
                version += 1
                change()
            else:
                fields = (f"Accept-Encoding: {how}",)
                await client.ask(head(RAW, ORDINARY, *fields))
                await edge.settled()
                ordinary = await client.ask(head(RAW, ORDINARY, *fields))
                before = at_once(edge)
                for _ in range(2):
                    assert same_fields(await client.ask(head(RAW, *fields))) == same_fields(ordinary)
                assert at_once(edge) == before + 2
