"""Lists are read by their Link headers, in both modes, and every row is listed once (decision D3)."""

import re
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api_server.accounts import user_queries
from api_server.namespaces.namespace_queries import LISTED_DESCRIPTION
from api_server.namespaces.paths import MAX_ANCESTORS
from api_server.state.listing import LISTED_TEXT, MAX_BYTES, MAX_COUNTED, Page
from tests.support.forge import Forge

_LINK = re.compile(r'<([^>]+)>; rel="(\w+)"')


def _links(headers) -> dict[str, str]:
    return {relation: url for url, relation in _LINK.findall(headers.get("Link", ""))}


async def _walk(forge: Forge, path: str) -> list[list[int]]:
    """Yield the ids on each page, following `rel="next"`."""
    pages: list[list[int]] = []
    url: str | None = path
    while url:
        answer = await forge.root.get(url)
        assert answer.status == 200, answer
        pages.append([row["id"] for row in answer.body])
        url = _links(answer.headers).get("next")
    return pages


@pytest.fixture(scope="module")
async def some(own_forge: Forge) -> tuple[str, list[int]]:
    """A list of seven projects, and their ids, the newest first."""
    group = await own_forge.group()
    made = [await own_forge.project(namespace_id=group["id"]) for _ in range(7)]
    return f"/groups/{group['id']}/projects", [project["id"] for project in reversed(made)]


@given(
    per_page=st.integers(1, 9),
    keyset=st.booleans(),
    sort=st.sampled_from(["asc", "desc", "ASC", "DESC"]),
)
async def test_walking_by_link_yields_every_row_once_in_order(
    own_forge: Forge, some: tuple[str, list[int]], per_page: int, keyset: bool, sort: str
) -> None:
    path, ids = some
    query = f"per_page={per_page}&order_by=id&sort={sort}"
    pages = await _walk(own_forge, f"{path}?{query}" + ("&pagination=keyset" if keyset else ""))
    assert [row for page in pages for row in page] == (ids[::-1] if sort.lower() == "asc" else ids)
    assert all(len(page) == per_page for page in pages[:-1])
    assert len(pages) == -(-len(ids) // per_page)


@given(order=st.sampled_from(["id", "name", "path", "created_at", "updated_at", "last_activity_at"]))
async def test_every_order_yields_every_row_once(
    own_forge: Forge, some: tuple[str, list[int]], order: str
) -> None:
    path, ids = some
    pages = await _walk(own_forge, f"{path}?per_page=2&order_by={order}")
    assert sorted(row for page in pages for row in page) == sorted(ids)


async def test_offset_headers(own_forge: Forge, some: tuple[str, list[int]]) -> None:
    path, _ = some
    answer = await own_forge.root.get(f"{path}?page=2&per_page=3&search=project&private_token=x", headers={})
    assert answer.status == 401, "a parameter goes before a header"
    answer = await own_forge.root.get(f"{path}?page=2&per_page=3&search=project")
    named = {
        name: value
        for name, value in answer.headers.items()
        if name.startswith("X-") and "Request" not in name
    }
    assert named == {
        "X-Next-Page": "3",
        "X-Page": "2",
        "X-Per-Page": "3",
        "X-Prev-Page": "1",
        "X-Total": "7",
        "X-Total-Pages": "3",
    }
    links = _links(answer.headers)
    assert list(links) == ["prev", "next", "first", "last"]
    assert [parse_qs(urlsplit(url).query)["page"] for url in links.values()] == [["1"], ["3"], ["1"], ["3"]]
    assert all(url.startswith(f"{own_forge.base}/api/v4{path}?id=") for url in links.values())
    assert all("search=project" in url and "per_page=3" in url for url in links.values())


async def test_an_empty_list_and_a_page_past_the_end(own_forge: Forge, some: tuple[str, list[int]]) -> None:
    path, _ = some
    empty = await own_forge.root.get(f"{path}?search=nothing-has-this-name")
    assert (empty.body, empty.headers["X-Total"], empty.headers["X-Total-Pages"]) == ([], "0", "1")
    assert (empty.headers["X-Next-Page"], empty.headers["X-Prev-Page"]) == ("", "")
    past = await own_forge.root.get(f"{path}?page=9")
    assert (past.body, past.headers["X-Next-Page"], past.headers["X-Prev-Page"]) == ([], "", "")
    assert (past.headers["X-Page"], list(_links(past.headers))) == ("9", ["first", "last"])


async def test_keyset_answers_have_no_page_headers_and_no_link_at_the_end(
    own_forge: Forge, some: tuple[str, list[int]]
) -> None:
    path, ids = some
    first = await own_forge.root.get(f"{path}?pagination=keyset&per_page=4")
    assert not [name for name in first.headers if name.lower() in ("x-page", "x-total", "x-per-page")]
    link = _links(first.headers)
    assert list(link) == ["next"]
    names = [name for name, _, _ in (pair.partition("=") for pair in urlsplit(link["next"]).query.split("&"))]
    assert names == sorted(names)
    assert names[-1] != "cursor"
    last = await own_forge.root.get(link["next"])
    assert ([row["id"] for row in last.body], "Link" in last.headers) == (ids[4:], False)


async def test_a_deleted_row_does_not_shift_keyset_pages(own_forge: Forge) -> None:
    group = await own_forge.group()
    made = [(await own_forge.project(namespace_id=group["id"]))["id"] for _ in range(4)]
    first = await own_forge.root.get(f"/groups/{group['id']}/projects?pagination=keyset&per_page=2")
    await own_forge.root.delete(f"/projects/{made[3]}")
    rest = await own_forge.root.get(_links(first.headers)["next"])
    assert [row["id"] for row in rest.body] == [made[1], made[0]]


@pytest.mark.parametrize(
    ("query", "status", "error"),
    [
        (
            "pagination=keyset&order_by=name",
            405,
            "Keyset pagination is not yet available for this type of request",
        ),
        (
            "page=501&per_page=100",
            405,
            "Offset pagination has a maximum allowed offset of 50000. "
            "Remaining records can be retrieved using keyset pagination.",
        ),
        ("page=500&per_page=100", 200, None),
        ("per_page=1000", 200, None),
        ("pagination=other", 200, None),
    ],
)
async def test_what_cannot_be_paged(own_forge: Forge, query: str, status: int, error: str | None) -> None:
    answer = await own_forge.root.get(f"/projects?{query}")
    assert answer.status == status
    if error:
        assert answer.body == {"error": error}


async def test_per_page_is_clamped(own_forge: Forge) -> None:
    assert (await own_forge.root.get("/projects?per_page=1000")).headers["X-Per-Page"] == "100"


async def test_counting_stops_behind_ten_thousand_rows(own_forge: Forge) -> None:
    add = (
        "INSERT INTO users (username, name, email, static_object_seed, static_object_digest)"
        " SELECT 'counted-' || n, 'x', 'counted-' || n || '@example.org', '', sha256(('counted-' || n)::bytea)"
        " FROM generate_series(%(first)s::int, %(last)s::int) n RETURNING id"
    )
    have = await own_forge.database.value("SELECT count(*) FROM users")
    async with own_forge.database.transaction() as transaction:
        await transaction.rows(add, first=1, last=MAX_COUNTED - have)
    exact = await own_forge.root.get("/users?per_page=1")
    assert (exact.headers["X-Total"], list(_links(exact.headers))) == ("10000", ["next", "first", "last"])
    async with own_forge.database.transaction() as transaction:
        await transaction.rows(add, first=20_001, last=20_005)
    many = await own_forge.root.get("/users?per_page=1")
    assert "X-Total" not in many.headers
    assert "X-Total-Pages" not in many.headers
    assert list(_links(many.headers)) == ["next", "first"]
    listed = await user_queries.list_users(
        own_forge.database,
        Page(),
        for_administrator=False,
        bots=None,
        username=None,
        search=None,
        active=False,
        blocked=False,
    )
    assert listed.total == MAX_COUNTED + 1


#: A character that JSON writes as six, in names and descriptions of the maximum length, below the maximum number of
#: groups.
_LONG_NAME, _LONG_PATH, _LONG_TEXT = "\x01" * 255, "a" * 252, "\x01" * 2**20
_FILL = """
    WITH groups AS (
        INSERT INTO namespaces (kind, parent_id, lineage, name, path, full_path, full_name, description, visibility)
        SELECT 'group', %(group)s, lineage, %(name)s, %(path)s || number, full_path || '/' || %(path)s || number,
            full_name || ' / ' || %(name)s, %(text)s, 'public'
        FROM namespaces CROSS JOIN generate_series(100, 199) number WHERE id = %(group)s)
    INSERT INTO projects (namespace_id, name, path, full_path, description, visibility)
    SELECT %(group)s, %(name)s, %(path)s || number, full_path || '/' || %(path)s || number, %(text)s, 'public'
    FROM namespaces CROSS JOIN generate_series(100, 199) number WHERE id = %(group)s
"""


async def test_nobodys_texts_are_too_large_for_lists_that_others_read(own_forge: Forge) -> None:
    stranger, other = await own_forge.user(), await own_forge.user()
    group: dict[str, Any] = {"id": None}
    for _ in range(MAX_ANCESTORS):
        body = {
            "name": _LONG_NAME,
            "path": f"{_LONG_PATH}100",
            "visibility": "public",
            "parent_id": group["id"],
        }
        group = (await stranger.api.post("/groups", json=body, expect=201)).body
    names = {"name": _LONG_NAME, "path": _LONG_PATH, "text": _LONG_TEXT}
    await own_forge.execute(_FILL, group=group["id"], **names)
    below = f"/groups/{group['id']}"
    for path in (f"{below}/subgroups?", f"{below}/projects?", "/projects?simple=true&", "/projects?"):
        answer = await other.api.get(f"{path}per_page=100&order_by=path&sort=asc")
        assert (answer.status, len(answer.body)) == (200, 100)
        assert {row["description"] for row in answer.body} == {_LONG_TEXT[:LISTED_DESCRIPTION]}
    one = await other.api.get(f"/projects/{answer.body[0]['id']}")
    assert one.body["description"] == _LONG_TEXT


async def test_a_page_has_a_most_of_bytes(own_forge: Forge) -> None:
    """A page is in memory several times for each client that requests it. On a larger one, only those rows are
    shortened that have more than their share."""
    project = await own_forge.project()
    described = """
        INSERT INTO releases (project_id, tag, name, sha, description, released_at, created_at, updated_at)
        SELECT %(project)s, number, number, repeat('0', 40), repeat('a', %(size)s), now(), now(), now()
        FROM generate_series(1, 4) number
        UNION ALL SELECT %(project)s, '5', '5', repeat('0', 40), 'short', now(), now(), now()
    """
    await own_forge.execute(described, size=MAX_BYTES // 4, project=project["id"])
    path = f"/projects/{project['id']}/releases"
    for per_page, characters in ((3, MAX_BYTES // 4), (5, LISTED_TEXT)):
        answer = await own_forge.root.get(
            f"{path}?per_page={per_page}&order_by=created_at&sort=asc", expect=200
        )
        assert int(answer.headers["Content-Length"]) <= MAX_BYTES
        texts = [(row["tag_name"], row["description"]) for row in answer.body]
        long = [(str(number), "a" * characters) for number in range(1, 5)]
        assert texts == [*long, ("5", "short")][:per_page]
    await own_forge.execute("DELETE FROM releases WHERE tag = '1'")
    answer = await own_forge.root.get(f"{path}?per_page=100", expect=200)
    assert {len(row["description"]) for row in answer.body} == {5, MAX_BYTES // 4}, "the page is small enough"
