"""Well-formed and hostile bodies and other input: no request makes the server fail."""

import asyncio
import base64
import gzip
import hashlib
import io
import json
import secrets
import zlib
from collections.abc import AsyncIterator, Callable
from typing import Any
from urllib.parse import quote_from_bytes, urlencode

import attrs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from api_server.web.context import SERVICES
from api_server.web.params import public_name
from api_server.web.request_data import BODY_MEMORY
from api_server.web.routes import Role, Route
from tests.support.forge import ROOT_TOKEN, Forge, running_forge
from tests.support.route_table import ROUTES, name_of, path_of, required
from tests.support.waiting import until
from tests.support.wire import request, talk

#: Undoes changes of the caller's own account before each request.
KEEP_ROOT = """
    WITH token AS (UPDATE personal_access_tokens SET revoked = false, expires_at = NULL WHERE user_id = 1 RETURNING id)
    UPDATE users SET admin = true, state = 'active' WHERE id = 1 RETURNING id
"""

NASTY_TEXTS = st.sampled_from(
    [
        "",
        " ",
        "\0",
        "a\0b",
        "\ud800",
        "\u202e\u0000",
        "é",
        "😀",
        "'",
        "%",
        "%%(x)s",
        "$1",
        "../../etc/passwd",
        "a/b",
        ".",
        "..",
        "-",
        "*",
        "null",
        "true",
        "NaN",
        "1e400",
        "-1",
        "0",
        "9223372036854775807",
        "9223372036854775808",
        "99999999999999999999999999999999999999",
        "1" * 5000,
        "0000-00-00",
        "9999-12-31",
        "0001-01-01T00:00:00+23:59",
        "9999-12-31T23:59:59.999999-23:59",
        "2026-02-30",
        "[]",
        "{}",
        "x" * 20_000,
        "\\",
        "\n",
    ]
) | st.text(max_size=20)
NASTY_VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | NASTY_TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NASTY_TEXTS, inner, max_size=3),
    max_leaves=5,
)


@attrs.frozen
class Sent:
    """A request: path values, query pairs, and a body with its type."""

    route: Route
    path: dict[str, str]
    query: str
    body: bytes
    content_type: str


@st.composite
def requests(draw: st.DrawFn) -> Sent:
    route = draw(st.sampled_from(ROUTES))
    parsed = route.parameters
    names = [public_name(field) for field in attrs.fields(parsed)] if parsed else []
    name = st.sampled_from(names) if names else st.just("id")
    fitting = required(route) if draw(st.booleans()) else {}
    values = fitting | draw(st.dictionaries(name | NASTY_TEXTS, NASTY_VALUES, max_size=3))
    path = draw(st.dictionaries(st.sampled_from(["id", "user_id", "name"]), NASTY_TEXTS, max_size=1))
    query = draw(st.just("") | st.sampled_from(_QUERIES) | st.builds(_query, name, NASTY_TEXTS))
    content_type, body = draw(st.sampled_from(_BODIES))(values)
    return Sent(route, {key: text for key, text in path.items() if text}, query, body, content_type)


_QUERIES = [
    "a[b][c][d]=1&a[b]=2", "a[]=1&a=2&a[x]=3", "id=%ff%fe", "%00=%00", "[]=1",
    "a[" * 50 + "]" * 50 + "=1",
    "page=0", "per_page=-1", "page=99999999999999999999", "pagination=keyset&cursor=!!!",
    "pagination=keyset&cursor=eyJpZCI6IjEifQ==", "pagination=keyset&order_by=name",
    "&".join(f"p{n}=1" for n in range(1200)),
]  # fmt: skip


def _query(name: str, text: str) -> str:
    return f"{name}={quote_from_bytes(text.encode('utf-8', 'surrogatepass'))}"


def _json(values: dict[str, Any]) -> tuple[str, bytes]:
    return "application/json", json.dumps(values).encode()


def _form(values: dict[str, Any]) -> tuple[str, bytes]:
    pairs = [(name, str(value).encode("utf-8", "surrogatepass")) for name, value in values.items()]
    encoded = urlencode([(name.encode("utf-8", "surrogatepass"), value) for name, value in pairs])
    return "application/x-www-form-urlencoded", encoded.encode()


_BODIES = [
    _json,
    _json,
    _form,
    lambda _: ("application/json", b'{"a": '),
    lambda _: ("application/json", b"\xff\xfe"),
    lambda _: ("application/json", b"[" * 3000 + b"]" * 3000),
    lambda _: ("application/json", b"[1]"),
    lambda _: ("application/json", b'{"id": 1e999}'),
    lambda _: ("application/json; charset=utf-7", b"{}"),
    lambda _: ("multipart/form-data", b"no boundary"),
    lambda _: ("multipart/form-data; boundary=x", b"--x\r\nbroken"),
    lambda _: ("application/x-www-form-urlencoded", b"\xff=\xff&%=%zz"),
    lambda _: ("image/png", b"\x89PNG"),
    lambda _: ("/;;;", b"x"),
]


@pytest.fixture(scope="module")
def sources() -> dict[str, int]:
    """The project and the group of the routes; they are created again when a request has removed them."""
    return {}


@given(sent=requests())
@settings(
    max_examples=4 * settings().max_examples,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
async def test_no_request_makes_the_server_fail(
    own_forge: Forge, sources: dict[str, int], sent: Sent
) -> None:
    async with own_forge.database.transaction() as transaction:
        await transaction.row(KEEP_ROOT)
    kind = sent.route.access.kind
    if kind in ("project", "group") and kind not in sources:
        made = await (own_forge.project() if kind == "project" else own_forge.group())
        sources[kind] = made["id"]
    values = {"id": str(sources.get(kind, 1))} | _encodable(sent.path)
    url = own_forge.base + "/api/v4" + path_of(sent.route, values)
    answer = await own_forge.root.request(
        sent.route.method,
        f"{url}?{sent.query}" if sent.query else url,
        data=sent.body,
        headers={"Content-Type": sent.content_type},
    )
    assert answer.status < 500, (name_of(sent.route), sent, answer)
    assert answer.status != 401, (name_of(sent.route), answer)
    if sent.route.method == "DELETE" and answer.status < 300:
        sources.pop(kind, None)


def _encodable(path: dict[str, str]) -> dict[str, str]:
    """Return a text that can be sent in a path, with the bytes that a client would send for lone surrogates."""
    return {
        key: text.encode("utf-8", "replace").decode() for key, text in path.items() if text not in (".", "..")
    }


JSON = "Content-Type: application/json"
ROOT = f"PRIVATE-TOKEN: {ROOT_TOKEN}"
GROUPS = "/api/v4/groups"
#: The content of the bodies in `gzip` and `deflate`.
ASKED = b'{"nothing": "asked"}'
MISSING = (400, {"error": "name is missing, path is missing"})
UNAUTHORIZED = (401, {"message": "401 Unauthorized"})


def _deflated(data: bytes, wbits: int) -> bytes:
    packer = zlib.compressobj(wbits=wbits)
    return packer.compress(data) + packer.flush()


ZLIB, RAW, GZIP = (_deflated(ASKED, wbits) for wbits in (15, -15, 31))


async def _ask(forge: Forge, *fields: str, body: bytes = b"", path: str = GROUPS) -> tuple[int, Any]:
    async with talk(forge.settings.port) as client:
        await client.send(request("POST", path, JSON, f"Content-Length: {len(body)}", *fields))
        for piece in (body[: len(body) // 2], body[len(body) // 2 :]):
            client.writer.write(piece)
            await asyncio.sleep(0.02)  # two packets
        return await client.answer()


@pytest.mark.parametrize(
    ("coding", "body", "answer"),
    [
        ("gzip", GZIP, MISSING),
        ("x-gzip", GZIP, MISSING),
        ("GZIP", GZIP, MISSING),
        ("deflate", ZLIB, MISSING),
        ("deflate", RAW, MISSING),
        ("identity", ASKED, MISSING),
        ("", ASKED, MISSING),
        ("gzip", b"", MISSING),
        ("gzip", ASKED, (400, {"error": "The body is not valid gzip."})),
        ("gzip", GZIP[:-9], (400, {"error": "The body is not valid gzip."})),
        ("gzip", GZIP[:-1] + b"x", (400, {"error": "The body is not valid gzip."})),
        ("gzip", GZIP + GZIP, (400, {"error": "The body is not valid gzip."})),
        ("deflate", ASKED, (400, {"error": "The body is not valid deflate."})),
        ("deflate", ZLIB[:-6], (400, {"error": "The body is not valid deflate."})),
        ("deflate", RAW[:-3], (400, {"error": "The body is not valid deflate."})),
        *(
            (coding, ASKED, (415, {"error": "The Content-Encoding is not supported; gzip and deflate are."}))
            for coding in ("br", "zstd", "gzip, gzip", "nonsense")
        ),
    ],
)
async def test_a_content_encoding_is_undone_or_refused(
    forge: Forge, coding: str, body: bytes, answer: tuple[int, Any]
) -> None:
    assert await _ask(forge, ROOT, f"Content-Encoding: {coding}", body=body) == answer


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br"])
async def test_strangers_are_answered_at_once(forge: Forge, coding: str) -> None:
    """They send half of a body in each coding, and nothing more."""
    async with talk(forge.settings.port) as client:
        head = request("POST", GROUPS, JSON, f"Content-Encoding: {coding}", "Content-Length: 100000")
        await client.send(head + ZLIB[:9])
        assert await client.answer() == UNAUTHORIZED


async def test_a_bomb_is_defused_at_the_limit_of_bodies(forge: Forge) -> None:
    bomb = gzip.compress(b" " * 50_000_000, 6)
    assert len(bomb) < 65_536
    answer = await _ask(forge, ROOT, "Content-Encoding: gzip", body=bomb)
    assert answer == (413, {"error": "413 Request Entity Too Large"})


async def test_a_form_of_several_parts_is_not_encoded(forge: Forge) -> None:
    fields = ("Content-Encoding: gzip", "Content-Type: multipart/form-data; boundary=x", ROOT)
    async with talk(forge.settings.port) as client:
        await client.send(request("POST", GROUPS, "Content-Length: 20", *fields) + GZIP[:20])
        status, body = await client.answer()
    assert (status, body) == (415, {"error": "A body of several parts cannot have a Content-Encoding."})


@pytest.mark.parametrize(
    ("coding", "body", "status"), [("gzip", ASKED, 400), ("gzip", GZIP[:-4], 400), ("br", ASKED, 415)]
)
async def test_git_is_told_too(forge: Forge, coding: str, body: bytes, status: int) -> None:
    project = await forge.project(visibility="public", initialize_with_readme=True)
    path = f"/{project['path_with_namespace']}.git/git-upload-pack"
    async with talk(forge.settings.port) as client:
        fields = (f"Content-Encoding: {coding}", f"Content-Length: {len(body)}")
        await client.send(request("POST", path, *fields) + body)
        assert (await client.head()).startswith(f"HTTP/1.1 {status} ".encode())


# Bodies that are read before the caller is known.

LARGE = 1_000_000
STRANGE = f"PRIVATE-TOKEN: {secrets.token_hex(8)}"


@pytest.mark.parametrize(
    ("method", "path", "fields", "status"),
    [
        ("POST", GROUPS, (JSON,), 401),
        ("POST", GROUPS, (JSON, STRANGE), 401),
        ("POST", f"{GROUPS}?private_token=unknown", (JSON,), 401),
        ("PUT", "/api/v4/application/settings", ("Content-Type: application/x-www-form-urlencoded",), 401),
        ("POST", GROUPS, ("Content-Type: multipart/form-data; boundary=x",), 401),
        ("POST", "/api/v4/jobs/1/artifacts", ("Content-Type: multipart/form-data; boundary=x",), 403),
        ("PATCH", "/api/v4/jobs/1/trace", ("Content-Range: 0-9",), 403),
        ("POST", "/nobody/nothing.git/git-receive-pack", (), 401),
        ("POST", "/nobody/nothing.git/git-upload-pack", (), 401),
        ("PUT", f"/nobody/nothing.git/info/lfs/objects/{'0' * 64}/{LARGE}", (), 401),
        ("POST", "/nobody/nothing.git/info/lfs/objects/batch", (), 401),
        ("POST", "/-/sign_in", ("Content-Type: application/x-www-form-urlencoded",), 413),
    ],
)
@pytest.mark.parametrize("expects", [True, False])
async def test_a_large_body_of_a_stranger_is_refused_unread(
    forge: Forge, method: str, path: str, fields: tuple[str, ...], status: int, *, expects: bool
) -> None:
    """The server neither asks for it nor waits for it, and does not read its bytes as a second request."""
    expectation = ("Expect: 100-continue",) if expects else ()
    async with talk(forge.settings.port) as client:
        await client.send(request(method, path, f"Content-Length: {LARGE}", *fields, *expectation))
        head = await client.head()
        assert head.startswith(f"HTTP/1.1 {status} ".encode()), head
        assert b"\r\nConnection: close\r\n" in head


async def test_credentials_may_stand_in_a_body_of_64_kib(forge: Forge) -> None:
    for size, answer in ((60_000, MISSING), (70_000, UNAUTHORIZED)):
        body = json.dumps({"private_token": ROOT_TOKEN, "filling": "x" * size}).encode()
        assert await _ask(forge, body=body) == answer
        chunked = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
        async with talk(forge.settings.port) as client:
            await client.send(request("POST", GROUPS, JSON, "Transfer-Encoding: chunked") + chunked)
            assert await client.answer() == answer


async def test_runners_send_their_token_in_bodies_up_to_a_limit(forge: Forge) -> None:
    for size, status in ((500_000, 403), (1_100_000, 413)):
        body = json.dumps({"token": "unknown", "filling": "x" * size}).encode()
        assert (await _ask(forge, body=body, path="/api/v4/jobs/request"))[0] == status


async def test_who_calls_comes_before_what_is_wrong_with_the_body(forge: Forge) -> None:
    assert await _ask(forge, STRANGE, body=b"{") == UNAUTHORIZED
    assert await _ask(forge, ROOT, body=b"{") == (400, {"error": "the body is not valid JSON"})


# All bodies together.


@pytest.fixture(scope="module")
async def frugal(
    new_database: Callable[[], str], tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Forge]:
    limits = {"bodies_limit": 1_000_000, "bodies_limit_per_address": 600_000}
    folder = tmp_path_factory.mktemp("frugal")
    async with running_forge(
        new_database(), folder, work=False, trusted_proxies=["127.0.0.1"], **limits
    ) as forge:
        yield forge


@pytest.mark.parametrize(("address", "status"), [("192.0.2.1", 429), ("192.0.2.2", 503)])
async def test_bodies_in_memory_are_bounded_together(frugal: Forge, address: str, status: int) -> None:
    """Two clients send half a megabyte each, without the last byte: there is no room for more of either."""
    memory = frugal.server.app[SERVICES][BODY_MEMORY]
    body = b" " * 500_000
    head = request("POST", GROUPS, JSON, ROOT, f"Content-Length: {len(body)}")

    def from_(client: str) -> bytes:
        return head.replace(b"Host: x", f"Host: x\r\nX-Forwarded-For: {client}".encode())

    async with talk(frugal.settings.port) as first, talk(frugal.settings.port) as second:
        await first.send(from_("192.0.2.1") + body[:-1])
        if status == 503:
            await second.send(from_("192.0.2.3") + body[:-1])
        await until(lambda: memory.bytes >= (999_000 if status == 503 else 499_000))
        async with talk(frugal.settings.port) as third:
            await third.send(from_(address) + body)
            answered, told = await third.answer()
        assert (answered, "try again later" in told["error"]) == (status, True)
        await first.send(b" ")
        assert (await first.answer())[0] == 400
    await until(lambda: memory.bytes == 0)


async def test_streams_are_not_held(frugal: Forge) -> None:
    """A file that is larger than all bodies together may be is accepted, because it is never in memory as a whole."""
    project = await frugal.project()
    await frugal.member("projects", project["id"], await frugal.user(), Role.DEVELOPER)
    content = secrets.token_bytes(1_500_000)
    oid = hashlib.sha256(content).hexdigest()
    credentials = base64.b64encode(f"x:{ROOT_TOKEN}".encode()).decode()
    path = f"{frugal.base}/{project['path_with_namespace']}.git/info/lfs/objects/{oid}/{len(content)}"
    headers = {"Authorization": f"Basic {credentials}"}
    async with frugal.session.put(path, data=io.BytesIO(content), headers=headers) as answer:
        assert answer.status == 200, await answer.text()
