"""Nobody's texts are too large for a list that others read: on a page above its limit, the rows above their share are
shortened, and all others are whole."""

from typing import Any

import orjson
import pytest

from api_server.merge_requests.changes import MAX_DESCRIPTION, MAX_NAMED, MAX_TITLE
from api_server.merge_requests.list_queries import BY_IDS
from api_server.state import listing
from api_server.state.database import Database
from api_server.state.listing import LISTED_TEXT, MAX_BYTES, Page
from common.concurrency import ConcurrencyLimiter
from tests.support.ci import ONE_JOB, ci_project
from tests.support.forge import Client, Forge, Person
from tests.support.merge_requests import new_project, open_merge_request
from tests.support.plans import scans, undone

#: A character that JSON writes as six.
_LONG = "\x01"
#: Bots of a stranger, who chooses their names.
_BOTS = """
    INSERT INTO users (username, name, email, bot, static_object_seed, static_object_digest)
    SELECT 'project_1_bot_' || md5(n::text), repeat(%(long)s, 255), n || '@example.org', true, '',
        sha256(n::text::bytea)
    FROM generate_series(1, %(number)s) n ON CONFLICT DO NOTHING
"""
_MERGE_REQUESTS = """
    INSERT INTO merge_requests (project_id, iid, author_id, title, description, labels, source_branch, target_branch,
        head_sha, start_sha, last_commit, mergeability, state, merge_user_id, closed_by_id)
    SELECT project_id, 1000 + n, bots.id, repeat(%(long)s, %(title)s), repeat(%(long)s, %(description)s),
        (SELECT array_agg(rpad(n::text, 255, %(long)s) ORDER BY n) FROM generate_series(1, %(labels)s) n),
        rpad('s' || n, 1023, '"'), rpad('t' || n, 1023, '"'),
        head_sha, start_sha, last_commit, mergeability, 'merged', bots.id, bots.id
    FROM merge_requests
    CROSS JOIN generate_series(1, 99) n
    CROSS JOIN (SELECT max(id) AS id FROM users WHERE bot) bots
    WHERE merge_requests.id = %(like)s
"""
_PEOPLE = """
    INSERT INTO merge_request_people (merge_request_id, part, user_id, created_at)
    SELECT merge_requests.id, part, users.id, now()
    FROM merge_requests CROSS JOIN users CROSS JOIN unnest('{assignee,reviewer}'::text[]) part
    WHERE merge_requests.iid > 1000 AND users.bot
"""


async def _read(reader: Client, path: str) -> list[dict[str, Any]]:
    """Return the rows of a page, which has at most MAX_BYTES."""
    answer = await reader.get(path, expect=200)
    assert int(answer.headers["Content-Length"]) <= MAX_BYTES
    return list(answer.body)


@pytest.fixture
async def alice(own_forge: Forge) -> Person:
    return await own_forge.user("alice")


@pytest.fixture
async def stranger(own_forge: Forge) -> Person:
    return await own_forge.user()


@pytest.fixture
async def group(own_forge: Forge, alice: Person) -> dict[str, Any]:
    return await own_forge.group(alice, visibility="public")


@pytest.fixture
async def project(own_forge: Forge, alice: Person, group: dict[str, Any]) -> dict[str, Any]:
    return await new_project(own_forge, alice, visibility="public", namespace_id=group["id"])


async def test_a_hundred_merge_requests_at_all_limits_are_a_page(
    own_forge: Forge, alice: Person, stranger: Person, group: dict[str, Any], project: dict[str, Any]
) -> None:
    made = await open_merge_request(alice, project, description="é" * LISTED_TEXT, labels="a,b")
    await own_forge.execute(_BOTS, long=_LONG, number=MAX_NAMED)
    limits = {"title": MAX_TITLE, "description": MAX_DESCRIPTION, "labels": MAX_NAMED}
    await own_forge.execute(_MERGE_REQUESTS, like=made["id"], long=_LONG, **limits)
    await own_forge.execute(_PEOPLE)
    own = f"/projects/{project['id']}/merge_requests"
    labels = [f"{number:{_LONG}<255}" for number in range(1, MAX_NAMED + 1)]
    # The three lists have the same rows, and building them takes seconds: two are read in part.
    for path in (own, f"/groups/{group['id']}/merge_requests"):
        assert len(await _read(stranger.api, f"{path}?per_page=10")) == 10
    *rows, whole = await _read(stranger.api, "/merge_requests?scope=all&per_page=100")
    assert whole == {key: made[key] for key in whole}, "not shortened: it is within its share"
    assert len(rows) == 99
    for row in rows:
        assert row.keys() == whole.keys()
        assert (set(row["title"]), set(row["description"])) == ({_LONG}, {_LONG})
        assert len(row["description"]) >= 100
        assert len(row["labels"]) == len(row["assignees"]) == len(row["reviewers"]) == 12
        assert all(label.startswith(listed) for label, listed in zip(labels, row["labels"], strict=False))
    alone = await stranger.api.get(f"{own}/1001", expect=200)
    named = [len(alone.body[key]) for key in ("labels", "assignees", "reviewers")]
    assert (alone.body["description"], alone.body["labels"]) == (_LONG * MAX_DESCRIPTION, labels)
    assert named == [MAX_NAMED] * 3
    await _is_given_up_early(own_forge.database)
    await _wait_for_each_other(stranger.api, f"{own}?per_page=10")


async def _is_given_up_early(database: Database) -> None:
    """A page is too large as soon as a row is above its share, so the statement that finds this builds few more."""
    page = Page(100)
    values = {"ids": list(range(1000)), "state": None, **page.values}
    async with undone(database) as transaction:
        counts = await scans(transaction, "notes", BY_IDS.statement(page), **values)
    assert 2 <= max(node["Actual Loops"] for node in counts) <= 4, "PostgreSQL reads ahead"


async def _wait_for_each_other(reader: Client, large: str) -> None:
    """No more than a few large pages are read at once, so that connections are left for others."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(listing, "_LARGE_PAGES", ConcurrencyLimiter(1, 1))
        async with listing._LARGE_PAGES.slot():
            assert (await reader.get(large)).status == 503
            await reader.get("/projects", expect=200)
        await reader.get(large, expect=200)


_NOTES = """
    INSERT INTO notes (merge_request_id, discussion_id, type, author_id, body, system, internal, diff_position,
        resolved_at, resolved_by_id, created_at, updated_at)
    SELECT %(merge_request)s, md5((n %% 100)::text), 'DiffNote', bots.id, repeat(%(long)s, %(size)s), false, false,
        json_build_object('old_path', repeat('"', 1000), 'new_path', repeat('"', 1000)), now(), bots.id, now(), now()
    FROM generate_series(1, %(number)s) n CROSS JOIN (SELECT max(id) AS id FROM users WHERE bot) bots
"""


async def test_a_hundred_threads_at_all_limits_are_a_page(
    own_forge: Forge, alice: Person, stranger: Person, project: dict[str, Any]
) -> None:
    made = await open_merge_request(alice, project)
    await own_forge.execute(_BOTS, long=_LONG, number=1)
    limit, number = own_forge.settings.notes_size_limit, own_forge.settings.notes_limit
    size = limit // number - 4100
    await own_forge.execute(_NOTES, merge_request=made["id"], long=_LONG, size=size, number=number)
    own = f"/projects/{project['id']}/merge_requests/{made['iid']}"
    for order in ("asc", "desc"):
        threads = await _read(stranger.api, f"{own}/discussions?per_page=100&sort={order}")
        assert len(threads) == 100
        for thread in threads:
            assert len(thread["notes"]) == 12
            assert {note["body"] for note in thread["notes"]} == {_LONG * 156}
    notes = await _read(stranger.api, f"{own}/notes?per_page=100")
    assert {note["body"] for note in notes} == {_LONG * size}, "this page is not too large"
    alone = await stranger.api.get(f"{own}/discussions/{threads[0]['id']}", expect=200)
    assert [len(note["body"]) for note in alone.body["notes"]] == [size] * (number // 100)
    await own_forge.execute("DELETE FROM notes WHERE id > 200")
    await own_forge.execute("UPDATE notes SET discussion_id = %(id)s", id=threads[0]["id"])
    alone = await stranger.api.get(f"{own}/discussions/{threads[0]['id']}", expect=200)
    assert int(alone.headers["Content-Length"]) <= MAX_BYTES
    assert [note["body"] for note in alone.body["notes"]] == [_LONG * size] * 100, (
        "shortened as a page of one"
    )


#: (what somebody writes, the lists that others read). A job shows its commit, a runner's job its project.
_OTHERS = [
    (
        """
        INSERT INTO personal_access_tokens (user_id, name, digest, scopes, description)
        SELECT users.id, repeat(%(long)s, 255), sha256(('x' || n)::bytea), '{api}', repeat(%(long)s, 1048576)
        FROM users CROSS JOIN generate_series(1, 100) n WHERE username = 'root'
        """,
        ["/personal_access_tokens?"],
    ),
    (
        """
        WITH message AS (
            UPDATE pipelines SET commit = jsonb_set(commit::jsonb, '{message}', to_jsonb(repeat(%(long)s, 1000000)))),
        described AS (UPDATE projects SET description = repeat(%(long)s, 1048576))
        UPDATE jobs SET tag_list = (SELECT array_agg(rpad(n::text, 255, %(long)s)) FROM generate_series(1, 200) n),
            runner_id = (SELECT max(id) FROM runners), status = 'success', finished_at = now()
        """,
        [
            "/projects/{id}/jobs?",
            "/projects/{id}/pipelines/{pipeline_id}/jobs?",
            "/runners/{runner_id}/jobs?",
        ],
    ),
    (
        """
        WITH checks AS (
            INSERT INTO external_status_checks (project_id, name, external_url)
            SELECT %(id)s, n || repeat(%(long)s, 250), 'http://example.org/' || n FROM generate_series(1, 100) n
            RETURNING id),
        branches AS (
            INSERT INTO protected_branches (project_id, name)
            SELECT %(id)s, n || repeat('"', 250) FROM generate_series(1, 1000) n RETURNING id)
        INSERT INTO external_status_check_branches (check_id, protected_branch_id)
        SELECT checks.id, branches.id FROM checks CROSS JOIN branches
        """,
        ["/projects/{id}/external_status_checks?"],
    ),
]


async def test_no_other_list_is_too_large(own_forge: Forge) -> None:
    project = await ci_project(own_forge)
    made = await own_forge.root.post("/user/runners", {"runner_type": "instance_type"}, expect=201)
    pipeline = await project.pipeline(f"{ONE_JOB}  parallel: 100\n")
    names = {"id": project.id, "pipeline_id": pipeline["id"], "runner_id": made.body["id"]}
    for fill, paths in _OTHERS:
        await own_forge.execute(fill, long=_LONG, **names)
        for path in paths:
            rows = await _read(own_forge.root, f"{path.format(**names)}per_page=100")
            assert len(rows) == 100, path


async def test_the_values_of_variables_are_whole(
    own_forge: Forge, alice: Person, project: dict[str, Any]
) -> None:
    """PostgreSQL has them encrypted, and what is cut cannot be decrypted."""
    path = f"/projects/{project['id']}/variables"
    values = {"key": "K" * 250, "value": "\U0010ffff" * 10_000, "environment_scope": "a" * 255}
    await alice.api.post(path, values | {"description": _LONG * 255}, expect=201)
    copies = """
        INSERT INTO ci_variables OVERRIDING SYSTEM VALUE
        SELECT (jsonb_populate_record(ci_variables, jsonb_build_object('id', 1000 + n, 'key', key || n))).*
        FROM ci_variables CROSS JOIN generate_series(100, 198) n WHERE project_id = %(id)s
    """
    await own_forge.execute(copies, id=project["id"])
    answer = await alice.api.get(f"{path}?per_page=100", expect=200)
    assert [variable["value"] for variable in answer.body] == [values["value"]] * 100


async def test_what_is_shortened_is_json_of_the_same_shape(own_forge: Forge) -> None:
    async def shortened(entity: Any, size: int) -> Any:
        text = await own_forge.database.value(
            "SELECT shortened(%(entity)s, %(size)s)", entity=orjson.dumps(entity).decode(), size=size
        )
        assert len(text.encode()) <= size
        return orjson.loads(text)

    short = {
        "id": 2**53,
        "text": 'é"\\\n',
        "none": None,
        "list": [],
        "object": {},
        "flag": True,
        "number": -1.5e300,
    }
    assert await shortened(short, 200) == short
    assert await shortened(short | {"long": "é" * 11_000}, 21_000) == short | {"long": "é" * 10_000}
    deep = {"rows": [{"a": ["x" * 300] * 50}] * 50} | short
    assert await shortened(deep, 20_000) == {"rows": [{"a": ["x" * 39] * 6}] * 6} | short
