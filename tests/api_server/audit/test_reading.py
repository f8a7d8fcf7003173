"""Reading the audit trail: single events, lists, and the number of rows that a list reads."""

import asyncio
import contextlib
import datetime
import json
import re
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote

import gitlab
import psycopg2
import pytest

from api_server.audit import queries
from api_server.state.audit_trail import INSTANCE, Entity
from api_server.state.listing import Page
from tests.api_server.audit.conftest import RecordEvent, new_group
from tests.support.forge import Forge, Person, SharedForges, new_name
from tests.support.plans import nodes

RFC_3339 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


async def test_an_event_is_shown_with_exactly_six_keys(forge: Forge, record: RecordEvent) -> None:
    """Endpoint 28: values of `details` are strings except target_id; `created_at` is UTC with milliseconds."""
    author = await forge.user()
    group, entity = await new_group(forge)
    event_id = await record("group_created", entity, author)

    shown = await forge.root.get(f"/groups/{group['id']}/audit_events/{event_id}", expect=200)
    created_at = shown.body.pop("created_at")
    assert RFC_3339.fullmatch(created_at)
    assert shown.body == {
        "id": event_id,
        "author_id": author.id,
        "entity_id": group["id"],
        "entity_type": "Group",
        "details": {
            "event_name": "group_created",
            "custom_message": "Added group",
            "add": "group",
            "author_name": author.username.title(),
            "author_email": author.email,
            "author_class": "User",
            "target_id": 7,
            "target_type": "Group",
            "target_details": "some/group",
            "ip_address": "192.0.2.7",
            "entity_path": group["full_path"],
        },
    }


async def test_an_event_of_the_instance_carries_what_streams_carry(forge: Forge, record: RecordEvent) -> None:
    """The document's section on audit events: events of the instance have seven more keys at the top."""
    event_id = await record(
        "application_setting_updated",
        INSTANCE,
        change="default_projects_limit",
        target_id=1,
        target_details="settings",
        message="Changed default_projects_limit",
        **{"from": None, "to": 5},
    )
    shown = await forge.root.get(f"/audit_events/{event_id}")
    assert {key: value for key, value in shown.body.items() if key not in ("details", "created_at")} == {
        "id": event_id,
        "author_id": -1,
        "author_name": "(System)",
        "entity_id": 1,
        "entity_type": "Service::Audit::InstanceScope",
        "entity_path": "gitlab_instance",
        "event_type": "application_setting_updated",
        "target_id": 1,
        "target_type": "ApplicationSetting",
        "target_details": "settings",
        "ip_address": None,
    }
    details = shown.body["details"]
    assert (details["from"], details["to"]) == ("", "5"), "from and to are strings, of nothing the empty one"
    assert (details["author_email"], details["author_class"]) == (None, "UnauthenticatedAuthor")


async def test_the_address_of_a_deleted_author_is_null_and_her_name_stays(
    forge: Forge, record: RecordEvent
) -> None:
    author = await forge.user()
    _, entity = await new_group(forge)
    event_id = await record("group_created", entity, author)
    await forge.root.delete(f"/users/{author.id}")
    details = (await forge.root.get(f"/audit_events/{event_id}")).body["details"]
    assert (details["author_name"], details["author_email"]) == (author.username.title(), None)


async def test_events_outlive_their_entity(forge: Forge, record: RecordEvent) -> None:
    group, entity = await new_group(forge)
    event_id = await record("group_created", entity)
    await forge.root.delete(f"/groups/{group['id']}")
    assert (await forge.root.get(f"/audit_events/{event_id}")).status == 200


# --- who ------------------------------------------------------------------------------------------------------------


async def test_instance_events_are_for_administrators(forge: Forge, record: RecordEvent) -> None:
    """Endpoints 25 and 26."""
    event_id = await record("group_created", (await new_group(forge))[1])
    user = await forge.user()
    for path in ("/audit_events", f"/audit_events/{event_id}"):
        assert (await forge.anonymous.get(path)).status == 401
        assert (await user.api.get(path)).status == 403
        assert (await forge.root.get(path)).status == 200
    missing = await forge.root.get("/audit_events/999999999")
    assert (missing.status, missing.body) == (404, {"message": "404 Not found"})
    wrong = await forge.root.get("/audit_events/an-invalid-id")
    assert (wrong.status, wrong.body) == (400, {"error": "id is invalid"})


async def _seen(
    people: dict[str, Person], events: dict[str, int], url: str
) -> tuple[dict[str, tuple[int, int]], dict[str, list[int] | None]]:
    """Return, for each role, the statuses of the list and of the person's own event, and the listed ids."""
    statuses, listed_ids = {}, {}
    for role, person in people.items():
        listed = await person.api.get(url)
        shown = await person.api.get(f"{url.partition('?')[0]}/{events[role]}")
        statuses[role] = (listed.status, shown.status)
        listed_ids[role] = [event["id"] for event in listed.body] if listed.status == 200 else None
    return statuses, listed_ids


async def test_who_sees_what_of_a_group(forge: Forge, record: RecordEvent) -> None:
    """Endpoints 27 and 28: Owners see all events; Developers and Maintainers see their own ones in the list. Endpoint
    28 is for Owners only."""
    group, entity = await new_group(forge)
    people = await forge.people(group["id"], "groups")
    events = {role: await record("group_created", entity, person) for role, person in people.items()}
    url = f"/groups/{group['id']}/audit_events"

    statuses, own = await _seen(people, events, f"{url}?event_type=group_created")
    assert statuses == {
        "stranger": (403, 403),
        "guest": (403, 403),
        "reporter": (403, 403),
        "developer": (200, 403),
        "maintainer": (200, 403),
        "owner": (200, 200),
    }
    assert own["developer"] == [events["developer"]]
    assert own["maintainer"] == [events["maintainer"]]
    assert set(events.values()) <= set(own["owner"] or [])
    others = await people["developer"].api.get(f"{url}?author_id={people['owner'].id}")
    assert others.body == [], "a filter does not show what the role does not"


async def test_who_sees_what_of_a_project(forge: Forge, record: RecordEvent) -> None:
    """Endpoints 29 and 30: Maintainers see all events; Developers see their own ones in the list. Endpoint 30 is for
    Maintainers."""
    project = await forge.project(visibility="public")
    entity = Entity("Project", project["id"], project["path_with_namespace"])
    people = await forge.people(project["id"])
    values = {"target_id": project["id"]}
    events = {
        role: await record("project_archived", entity, person, **values) for role, person in people.items()
    }
    url = f"/projects/{project['id']}/audit_events"

    statuses, own = await _seen(people, events, f"{url}?event_type=project_archived")
    assert statuses == {
        "stranger": (403, 403),
        "guest": (403, 403),
        "reporter": (403, 403),
        "developer": (200, 403),
        "maintainer": (200, 200),
        "owner": (200, 200),
    }
    assert own["developer"] == [events["developer"]]
    assert own["maintainer"] == own["owner"] == sorted(events.values(), reverse=True)


@pytest.mark.parametrize("kind", ["groups", "projects"])
async def test_what_the_caller_cannot_see_is_not_found(forge: Forge, kind: str) -> None:
    made = await (forge.group(visibility="private") if kind == "groups" else forge.project())
    stranger = await forge.user()
    for path in (f"/{kind}/{made['id']}/audit_events", f"/{kind}/{made['id']}/audit_events/1"):
        assert (await stranger.api.get(path)).status == 404
        assert (await forge.anonymous.get(path)).status == 401


async def test_a_record_of_something_else_is_not_found(forge: Forge, record: RecordEvent) -> None:
    """Endpoints 28 and 30: events of another group or project and unknown ones are 404, a non-integer is 400."""
    group, _ = await new_group(forge)
    project = await forge.project()
    elsewhere = await record("group_created", (await new_group(forge))[1])
    for base in (f"/groups/{group['id']}", f"/projects/{project['id']}"):
        for event_id in (elsewhere, 999999999):
            answer = await forge.root.get(f"{base}/audit_events/{event_id}")
            assert (answer.status, answer.body) == (404, {"message": "404 Not found"})
        wrong = await forge.root.get(f"{base}/audit_events/an-invalid-id")
        assert (wrong.status, wrong.body) == (400, {"error": "audit_event_id is invalid"})


async def test_a_group_shows_its_own_events_only(forge: Forge, record: RecordEvent) -> None:
    """Endpoint 27: the list has no events of subgroups and projects; the full path works as well as the id."""
    group, entity = await new_group(forge)
    subgroup, below = await new_group(forge, parent_id=group["id"])
    project = await forge.project(namespace_id=group["id"])
    await record("group_created", below)
    own = await record("group_created", entity)
    path = f"/groups/{quote(group['full_path'], safe='')}/audit_events"
    listed = (await forge.root.get(path)).body
    assert {event["entity_id"] for event in listed} == {group["id"]}
    assert listed[0]["id"] == own
    assert subgroup["id"]
    assert project["id"]


@pytest.mark.parametrize(
    ("tier", "offering", "instance", "others"),
    [
        ("free", "self_managed", 403, 403),
        ("premium", "self_managed", 200, 200),
        ("ultimate", "dedicated", 200, 200),
        ("ultimate", "saas", 403, 200),
    ],
)
async def test_audit_events_are_of_paid_tiers(
    shared_forge: SharedForges, tier: str, offering: str, instance: int, others: int
) -> None:
    """They need Premium or Ultimate; those of the instance exist only on self-managed and dedicated."""
    forge = await shared_forge(tier=tier, offering=offering)
    group = await forge.group()
    project = await forge.project()
    assert (await forge.root.get("/audit_events")).status == instance
    assert (await forge.root.get("/audit_events/1")).status == instance
    for base in (f"/groups/{group['id']}", f"/projects/{project['id']}"):
        listed = await forge.root.get(f"{base}/audit_events")
        assert listed.status == others
    if tier == "free":
        assert listed.body == {"message": "403 Forbidden - audit events is not available on the free tier"}


# --- clients --------------------------------------------------------------------------------------------------------


async def test_python_gitlab_reads_all_three_scopes(forge: Forge, record: RecordEvent) -> None:
    project = await forge.project()
    group, _ = await new_group(forge)

    def read() -> dict[str, Any]:
        client = gitlab.Gitlab(forge.base, private_token=forge.root.token)
        of_group = client.groups.get(group["id"])
        of_project = client.projects.get(project["id"])
        events = {
            "instance": client.audit_events.list(entity_type="Project", entity_id=project["id"]),
            "group": of_group.audit_events.list(created_after="2020-01-01T00:00:00Z"),
            "project": of_project.audit_events.list(),
        }
        walked = list(
            client.audit_events.list(iterator=True, pagination="keyset", per_page=100, order_by="id")
        )
        assert len(walked) >= 3
        assert client.audit_events.get(events["instance"][0].id).entity_id == project["id"]
        assert of_group.audit_events.get(events["group"][0].id).details["event_name"] == "group_created"
        assert of_project.audit_events.get(events["project"][0].id).entity_type == "Project"
        return {scope: [event.details["event_name"] for event in found] for scope, found in events.items()}

    found = await asyncio.to_thread(read)
    assert found == {
        "instance": ["project_created"],
        "group": ["group_created"],
        "project": ["project_created"],
    }


async def test_names_are_of_their_own(forge: Forge) -> None:
    """An encoded path may replace the id."""
    name = new_name("app")
    project = (await forge.root.post("/projects", {"name": name})).body
    answer = await forge.root.get(f"/projects/{quote(project['path_with_namespace'], safe='')}/audit_events")
    assert [event["details"]["event_name"] for event in answer.body] == ["project_created"]


async def test_filters(forge: Forge, record: RecordEvent) -> None:
    """Facts B.3 and decision D7: each filter alone, and all together."""
    alice, bob = await forge.user("alice"), await forge.user("bob")
    group, entity = await new_group(forge)
    first = await record("group_created", entity, alice, target_id=101)
    second = await record("group_name_updated", entity, bob, target_id=102)
    user = Entity("User", alice.id, alice.username)
    third = await record("user_blocked", user, bob, target_id=alice.id)
    floor = first - 1

    async def ids(query: str, base: str = "") -> list[int]:
        answer = await forge.root.get(f"{base}/audit_events?per_page=100&{query}", expect=200)
        return [event["id"] for event in answer.body if event["id"] > floor and event["author_id"] > 1]

    assert await ids(f"author_id={alice.id}") == [first]
    assert await ids(f"author_username={alice.username.upper()}") == [first]
    assert await ids(f"entity_username={alice.username}") == [third]
    assert await ids(f"entity_type=User&entity_id={alice.id}") == [third]
    assert await ids(f"entity_type=Group&entity_id={group['id']}") == [second, first]
    assert await ids("event_type=group_name_updated", f"/groups/{group['id']}") == [second]
    assert await ids("target_type=Group&target_id=101", f"/groups/{group['id']}") == [first]
    assert await ids(f"author_id={bob.id}&event_type=user_blocked&target_type=User") == [third]
    assert await ids(f"author_id={bob.id}&event_type=user_unblocked") == []
    assert await ids("author_username=nobody-at-all") == []


async def test_times_are_inclusive_and_as_exact_as_they_are_shown(forge: Forge, record: RecordEvent) -> None:
    group, entity = await new_group(forge)
    ids = []
    for _ in range(3):
        ids.append(await record("group_created", entity))
        await asyncio.sleep(0.002)
    url = f"/groups/{group['id']}/audit_events?event_type=group_created"
    shown = (await forge.root.get(url)).body
    moments = {event["id"]: event["created_at"] for event in shown}

    async def between(**times: str) -> list[int]:
        query = "".join(f"&{name}={quote(value)}" for name, value in times.items())
        return sorted(event["id"] for event in (await forge.root.get(url + query)).body if event["id"] in ids)

    assert await between(created_after=moments[ids[1]]) == ids[1:]
    assert await between(created_before=moments[ids[1]]) == ids[:2]
    assert await between(created_after=moments[ids[1]], created_before=moments[ids[1]]) == [ids[1]]
    assert await between(created_after=moments[ids[2]], created_before=moments[ids[0]]) == []
    assert await between(created_after="2000-01-01") == ids, "a bare date is midnight UTC"
    assert await between(created_before="2000-01-20T00:00:00+05:00") == []


@pytest.mark.parametrize(
    ("query", "error"),
    [
        ("created_after=yesterday", "created_after is invalid"),
        ("created_before=2020-13-45", "created_before is invalid"),
        ("created_after=2020-01-01T00:00:00+01:00", "created_after is invalid"),  # + is a space in a query
        ("entity_id=1", "entity_type is missing"),
        ("entity_type=Banana", "entity_type does not have a valid value"),
        ("entity_type=User&entity_id=x", "entity_id is invalid"),
        ("sort=sideways", "sort does not have a valid value"),
        ("pagination=keyset&cursor=broken", "cursor is invalid"),
    ],
)
async def test_parameters_that_cannot_be_read(forge: Forge, query: str, error: str) -> None:
    answer = await forge.root.get(f"/audit_events?{query}")
    assert (answer.status, answer.body) == (400, {"error": error})


# --- pages ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sort", ["desc", "asc"])
async def test_keyset_pages_walk_over_everything_once(forge: Forge, record: RecordEvent, sort: str) -> None:
    """Facts B.3: `Link` with `next` until the last page, no totals; the links keep the filters."""
    group, entity = await new_group(forge)
    ids = [await record("group_name_updated", entity) for _ in range(7)]
    url: str | None = (
        f"{forge.base}/api/v4/groups/{group['id']}/audit_events"
        f"?pagination=keyset&per_page=3&sort={sort}&event_type=group_name_updated"
    )
    seen, pages = [], 0
    while url:
        answer = await forge.root.get(url, expect=200)
        assert "X-Total" not in answer.headers
        seen += [event["id"] for event in answer.body]
        pages += 1
        link = re.search(r'<([^>]+)>; rel="next"', answer.headers.get("Link", ""))
        url = link and link[1]
    assert seen == sorted(ids, reverse=sort == "desc")
    assert pages == 3


async def test_offset_pages(forge: Forge, record: RecordEvent) -> None:
    """20 on a page, newest first; `sort=created_asc` reverses the order; a page beyond the end is empty."""
    group, entity = await new_group(forge)
    ids = [await record("group_name_updated", entity) for _ in range(21)]
    url = f"/groups/{group['id']}/audit_events?event_type=group_name_updated"
    first = await forge.root.get(url)
    assert [event["id"] for event in first.body] == ids[:0:-1]
    names = ("X-Page", "X-Per-Page", "X-Next-Page", "X-Prev-Page", "X-Total", "X-Total-Pages")
    assert [first.headers[name] for name in names] == ["1", "20", "2", "", "21", "2"]
    oldest = await forge.root.get(f"{url}&sort=created_asc&per_page=2")
    assert [event["id"] for event in oldest.body] == ids[:2]
    beyond = await forge.root.get(f"{url}&page=9")
    assert (beyond.body, beyond.headers["X-Prev-Page"]) == ([], "")


async def test_only_ids_order_a_keyset(forge: Forge) -> None:
    answer = await forge.root.get("/audit_events?pagination=keyset&order_by=created_at")
    assert (answer.status, answer.body) == (
        405,
        {"error": "Keyset pagination is not yet available for this type of request"},
    )


async def test_an_answer_that_is_known_already_is_304(forge: Forge, record: RecordEvent) -> None:
    group, entity = await new_group(forge)
    await record("group_created", entity)
    url = f"/groups/{group['id']}/audit_events"
    first = await forge.root.get(url)
    again = await forge.root.get(url, headers={"If-None-Match": first.headers["ETag"]})
    assert again.status == 304


ROWS = 30_000
NOW = datetime.datetime.now(datetime.UTC)
IN_DAYS = {days: NOW + datetime.timedelta(days=days) for days in (10, 20)}

FILL = """
    INSERT INTO audit_events (created_at, author_id, author_name, entity_type, entity_id, entity_path, event_type,
        target_type, target_id, target_details, details)
    SELECT now() + interval '60 days' * n / %(rows)s, n %% 300, 'alice', 'Project', n %% 300, 'group/app',
        CASE n %% 100 WHEN 0 THEN 'project_archived' ELSE 'project_name_updated' END, 'Project', n %% 300, 'app',
        '{"custom_message": "Changed name from app to tool"}'
    FROM generate_series(1, %(rows)s) n
"""


@pytest.fixture(scope="module")
def cursor(new_database: Callable[[], str]) -> Iterator[Any]:
    """A database with many events over some months."""
    with contextlib.closing(
        psycopg2.connect(new_database(), options="-c forgelet.base_url=http://forge.example.org")
    ) as connection:
        connection.autocommit = True
        with connection.cursor() as opened:
            opened.execute("ALTER TABLE audit_events DISABLE TRIGGER USER")
            opened.execute(FILL, {"rows": ROWS})
            opened.execute("ALTER TABLE audit_events ENABLE TRIGGER USER")
            opened.execute("VACUUM (ANALYZE) audit_events")
            yield opened


def _read(cursor: Any, filters: dict[str, Any], **page: Any) -> tuple[int, set[str], int]:
    """Return the rows that were read from the table's partitions for a page of 20, the types of nodes that read them,
    and the number of 8 KiB blocks of tables and indexes that they read."""
    read, kinds, blocks = 0, set(), 0
    for node in _executed(cursor, filters, **page):
        if str(node.get("Relation Name", "")).startswith("audit_events") and node["Actual Loops"]:
            read += (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"]
            blocks += node["Shared Hit Blocks"] + node["Shared Read Blocks"]
            if node["Actual Rows"]:
                kinds.add(node["Node Type"])
    return int(read), kinds, blocks


def _executed(cursor: Any, filters: dict[str, Any], **page: Any) -> Iterator[dict[str, Any]]:
    """Return the nodes of the plan for a page of 20, with the blocks that they have read."""
    wanted = Page(**({"counted": False} | page))
    statement = queries.listing(frozenset(filters)).statement(wanted)
    cursor.execute("DEALLOCATE ALL")
    cursor.execute(statement.prepare)
    before, _, execute = statement.execute.partition("EXECUTE")
    assert "force_generic_plan" in before, "planned anew, a page costs three times as much"
    cursor.execute(
        f"{before}EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE{execute}", wanted.values | filters
    )
    found = cursor.fetchone()[0]
    yield from nodes((json.loads(found) if isinstance(found, str) else found)[0]["Plan"])


@pytest.mark.parametrize(
    "filters",
    [
        {},
        {"entity_type": "Project", "entity_id": 7},
        {"author_id": 7},
        {"event_type": "project_archived"},
        {"target_type": "Project", "target_id": 7},
        {"created_before": IN_DAYS[20]},
        {"author_id": 7, "created_before": IN_DAYS[20]},
        {"entity_type": "Project", "entity_id": 7, "created_after": IN_DAYS[10]},
    ],
    ids=lambda filters: ", ".join(filters) or "all",
)
def test_a_page_reads_its_own_rows_only(cursor: Any, filters: dict[str, Any]) -> None:
    read, kinds, blocks = _read(cursor, filters)
    assert blocks <= 35, "indexes are entered where the page begins"
    assert 21 <= read <= 21 + 2, "one more than the page tells that another follows"
    assert kinds <= {"Index Scan", "Index Only Scan"}


def test_a_page_far_behind_costs_no_more(cursor: Any) -> None:
    cursor.execute("SELECT id FROM audit_events ORDER BY created_at LIMIT 1 OFFSET 1000")
    read, kinds, blocks = _read(cursor, {}, after=cursor.fetchone()[0])
    assert read <= 25
    assert blocks <= 35
    assert kinds <= {"Index Scan", "Index Only Scan"}


@pytest.mark.parametrize(
    "filters",
    [{}, {"entity_type": "Project", "entity_id": 7}, {"author_id": 7}, {"event_type": "project_archived"}],
    ids=lambda filters: ", ".join(filters) or "all",
)
def test_where_a_page_begins_is_looked_up_by_its_id_alone(cursor: Any, filters: dict[str, Any]) -> None:
    """This does not depend on the number of events in the list."""
    nodes = _executed(cursor, filters, after=1)
    found = [node for node in nodes if node.get("Index Cond", "").startswith("(id = ")]
    assert len(found) >= 2, "one of each month"
    assert all(node["Index Name"].endswith("_pkey") and "Filter" not in node for node in found)


def test_counting_stops(cursor: Any) -> None:
    read, _, _ = _read(cursor, {}, counted=True)
    assert read <= 10_001 + 21
