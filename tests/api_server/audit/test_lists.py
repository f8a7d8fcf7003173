"""Endpoints 25, 27 and 29: what lists of audit events can be narrowed by, and their pages."""

import asyncio
import re
from urllib.parse import quote

import pytest

from api_server.state.audit_trail import Entity
from tests.api_server.audit.conftest import RecordEvent
from tests.api_server.audit.trail import new_group
from tests.support.forge import Forge


async def test_filters(forge: Forge, record: RecordEvent) -> None:
    """Facts B.3 and decision D7: each filter alone, and together."""
    alice, bob = await forge.user("alice"), await forge.user("bob")
    group, entity = await new_group(forge)
    first = await record("group_created", entity, alice, target_id=101)
    second = await record("group_name_updated", entity, bob, target_id=102)
    user = Entity(type="User", id=alice.id, path=alice.username)
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
    """Facts B.3: `Link` with `next` until the last page, no totals; the filters stay in the link."""
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
    """20 a page, newest first; `sort=created_asc` turns it round; beyond the end is an empty page."""
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
