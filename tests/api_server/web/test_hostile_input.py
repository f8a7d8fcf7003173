"""Whatever is sent to whatever route: the answer is never 500, and the server goes on."""

import json
from typing import Any
from urllib.parse import quote_from_bytes, urlencode

import attrs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from api_server.web.params import public_name
from api_server.web.routes import Route
from tests.support.forge import Forge
from tests.support.route_table import ROUTES, name_of, path_of, required

#: What a request may do to the caller's own account, undone before each request.
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
    "a[b][c][d]=1&a[b]=2",
    "a[]=1&a=2&a[x]=3",
    "id=%ff%fe",
    "%00=%00",
    "[]=1",
    "a[" * 50 + "]" * 50 + "=1",
    "page=0",
    "per_page=-1",
    "page=99999999999999999999",
    "pagination=keyset&cursor=!!!",
    "pagination=keyset&cursor=eyJpZCI6IjEifQ==",
    "pagination=keyset&order_by=name",
    "&".join(f"p{n}=1" for n in range(1200)),
]


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
    """The project and the group that routes are called with; made anew when a request has removed them."""
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
    kind = sent.route.access.who
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
    """Lone surrogates cannot be sent in a path; what a client would send for them is sent."""
    return {
        key: text.encode("utf-8", "replace").decode() for key, text in path.items() if text not in (".", "..")
    }
