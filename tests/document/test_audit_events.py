"""Area 4: audit events of the instance, of groups and of projects."""

import re
from typing import Any

import attrs
import pytest

from api_server.web.routes import Role
from tests.support.forge import Forge, Person, SharedForges

from .statements import says

TIMESTAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
DETAILS = {
    "custom_message", "add", "change", "from", "to", "author_name", "author_email", "author_class", "target_id",
    "target_type", "target_details", "ip_address", "entity_path",
}  # fmt: skip


@attrs.frozen
class Trail:
    """A group or a project in which two people have acted: `owner`, who may still do everything, and `former`, who had
    the right and is a Developer now."""

    kind: str
    id: int
    path: str
    owner: Person
    former: Person

    @property
    def url(self) -> str:
        return f"/{self.kind}/{self.id}/audit_events"

    async def read(self, person: Person, query: str = "") -> list[dict[str, Any]]:
        answer = await person.api.get(f"{self.url}?per_page=100&{query}")
        assert answer.status == 200, answer
        return list(answer.body)


async def _trail(forge: Forge, kind: str) -> Trail:
    owner, former = await forge.user("owner"), await forge.user("former")
    if kind == "groups":
        made = await forge.group(owner)
        path = made["full_path"]
    else:
        made = await forge.project(owner)
        path = made["path_with_namespace"]
    members = f"/{kind}/{made['id']}/members"
    for person, adds in ((owner, former), (former, await forge.user())):
        role = Role.OWNER if adds is former else Role.GUEST
        added = await person.api.post(members, {"user_id": adds.id, "access_level": int(role)})
        assert added.status == 201, added
    await owner.api.put(f"{members}/{former.id}", {"access_level": int(Role.DEVELOPER)})
    return Trail(kind, made["id"], path, owner, former)


@pytest.fixture(scope="module")
async def of_group(forge: Forge) -> Trail:
    return await _trail(forge, "groups")


@pytest.fixture(scope="module")
async def of_project(forge: Forge) -> Trail:
    return await _trail(forge, "projects")


@pytest.fixture(params=["of_group", "of_project"])
def trail(request: pytest.FixtureRequest) -> Trail:
    return request.getfixturevalue(request.param)


@says(
    "audit event",
    "| id | integer | |",
    "| author_id | integer | |",
    "| entity_id | integer | |",
    "| entity_type | string | `User`, `Group`, `Project`, `Service::Audit::InstanceScope` |",
    "| details | object | keys seen: `custom_message`, `add`, `change`, `from`, `to`, `author_name`, `author_email`,"
    " `author_class`, `target_id`, `target_type`, `target_details`, `ip_address` (may be null), `entity_path` |",
    "| created_at | timestamp | |",
)
async def test_what_an_event_shows(trail: Trail) -> None:
    for event in await trail.read(trail.owner):
        kinds = {"id": int, "author_id": int, "entity_id": int, "entity_type": str, "details": dict}
        assert all(isinstance(event[name], kind) for name, kind in kinds.items()), event
        assert TIMESTAMP.fullmatch(event["created_at"])
        assert set(event["details"]) - DETAILS <= {
            "event_name",
            "as",
            "expiry_from",
            "expiry_to",
            "member_id",
        }
    assert event["entity_type"] == {"groups": "Group", "projects": "Project"}[trail.kind]
    assert event["entity_id"] == trail.id


@says(
    "audit event",
    "Instance-scope events additionally carry top-level `ip_address`, `author_name`, `entity_path`, `target_details`,"
    " `target_type`, `target_id` and `event_type` (string).",
)
async def test_events_of_the_instance_carry_more(forge: Forge) -> None:
    limit = (await forge.root.get("/application/settings")).body["default_projects_limit"]
    for value in (limit + 1, limit):
        await forge.root.put("/application/settings", {"default_projects_limit": value})
    (event, *_) = (await forge.root.get("/audit_events?entity_type=Service::Audit::InstanceScope")).body
    more = {
        "ip_address",
        "author_name",
        "entity_path",
        "target_details",
        "target_type",
        "target_id",
        "event_type",
    }
    assert more <= set(event)
    assert isinstance(event["event_type"], str)


@says(
    "endpoint 25",
    "`created_after` string ISO 8601 (`YYYY-MM-DDTHH:MM:SSZ`), inclusive; `created_before` same format, inclusive;",
    "`created_after`, `created_before` optional as above | array of Audit event; 20 per page |",
    "`created_after`, `created_before` optional | array of Audit event; 20 per page |",
    "Read instance, group and project audit events, filtered by time (and entity for the instance).",
)
async def test_events_of_a_time(forge: Forge, trail: Trail) -> None:
    events = await trail.read(trail.owner)
    newest, oldest = events[0], events[-1]
    entity = {"groups": "Group", "projects": "Project"}[trail.kind]
    of_instance = f"/audit_events?per_page=100&entity_type={entity}&entity_id={trail.id}"
    for query, seen in (
        (f"created_after={newest['created_at']}", newest),
        (f"created_before={oldest['created_at']}", oldest),
    ):
        found = await trail.read(trail.owner, query)
        assert seen in found
        assert len(found) < len(events)
        everywhere = (await forge.root.get(f"{of_instance}&{query}")).body
        assert [event["id"] for event in everywhere] == [event["id"] for event in found]
    assert await trail.read(trail.owner, "created_after=2999-01-01T00:00:00Z") == []


@says(
    "endpoint 25",
    "`entity_type` string: `User`, `Group`, `Project`, `Service::Audit::InstanceScope`; `entity_id` integer, requires"
    " `entity_type`; all optional | array of Audit event; offset and keyset pagination |",
)
async def test_events_of_an_entity(forge: Forge, of_group: Trail) -> None:
    for entity in ("User", "Group", "Project", "Service::Audit::InstanceScope"):
        listed = await forge.root.get(f"/audit_events?entity_type={entity}")
        assert listed.status == 200
        assert {event["entity_type"] for event in listed.body} <= {entity}
    alone = await forge.root.get(f"/audit_events?entity_id={of_group.id}")
    assert alone.status == 400
    unknown = await forge.root.get("/audit_events?entity_type=Nothing")
    assert unknown.status == 400


@says(
    "limits",
    "| Default page size | 20 items | job lists (1, 2), audit event lists (25, 27, 29) |",
    "| Pagination styles | offset and keyset; keyset recommended for consecutive pages | endpoints 1, 25, 27, 29 |",
)
async def test_pages_of_events(forge: Forge, trail: Trail) -> None:
    for client, url in ((forge.root, "/audit_events"), (trail.owner.api, trail.url)):
        first = await client.get(url)
        assert first.headers["X-Per-Page"] == "20"
        keyset = await client.get(f"{url}?pagination=keyset&per_page=1&order_by=id&sort=desc")
        following = keyset.headers["Link"].partition(">")[0][1:]
        assert "cursor=" in following
        second = (await client.get(following)).body
        assert [len(keyset.body), len(second)] == [1, 1]
        assert second[0]["id"] < keyset.body[0]["id"]


@says(
    "endpoints 26, 28, 30",
    "| 26 | GET `/audit_events/:id` | `id` integer required | Audit event |",
    "| 28 | GET `/groups/:id/audit_events/:audit_event_id` | `id` integer/string, `audit_event_id` integer, required |"
    " Audit event |",
    "| 30 | GET `/projects/:id/audit_events/:audit_event_id` | `id` integer/string, `audit_event_id` integer,"
    " required | Audit event |",
    "`id` integer/string required;",
    "Audit events are records readable through endpoints 25 to 30;",
)
async def test_one_event(forge: Forge, trail: Trail) -> None:
    event = (await trail.read(trail.owner))[0]
    path = trail.path.replace("/", "%2F")
    for url in (trail.url, f"/{trail.kind}/{path}/audit_events"):
        assert (await trail.owner.api.get(f"{url}/{event['id']}")).body == event
        assert (await trail.owner.api.get(f"{url}/x")).status == 400
        assert (await trail.owner.api.get(url)).status == 200
    everywhere = (await forge.root.get(f"/audit_events/{event['id']}")).body
    assert {name: everywhere[name] for name in event} == event


@says("audit events", "Access rules: endpoints 25 and 26 require an Administrator.")
async def test_events_of_the_instance_are_administrators(forge: Forge, of_group: Trail) -> None:
    event = (await forge.root.get("/audit_events")).body[0]
    for url in ("/audit_events", f"/audit_events/{event['id']}"):
        assert (await of_group.owner.api.get(url)).status == 403
        assert (await forge.root.get(url)).status == 200


@says(
    "audit events",
    "Endpoint 27: Owner sees events of all users; Developer or Maintainer sees only events of their own actions.",
    "Endpoint 28: group owners and administrators only.",
)
@pytest.mark.parametrize("role", [Role.DEVELOPER, Role.MAINTAINER])
async def test_who_sees_what_of_a_group(forge: Forge, of_group: Trail, role: Role) -> None:
    await of_group.owner.api.put(
        f"/groups/{of_group.id}/members/{of_group.former.id}", {"access_level": int(role)}
    )
    every, own = [await of_group.read(person) for person in (of_group.owner, of_group.former)]
    assert {event["author_id"] for event in every} >= {of_group.owner.id, of_group.former.id}
    assert {event["author_id"] for event in own} == {of_group.former.id}
    one = f"{of_group.url}/{own[0]['id']}"
    assert (await of_group.former.api.get(one)).status == 403
    assert (await of_group.owner.api.get(one)).status == (await forge.root.get(one)).status == 200


@says(
    "audit events",
    "Endpoint 29: Maintainer or above sees all users' events; Developer sees only own actions.",
    "Endpoint 30: at least Maintainer.",
)
async def test_who_sees_what_of_a_project(forge: Forge, of_project: Trail) -> None:
    maintainer = await forge.user("maintainer")
    await forge.member("projects", of_project.id, maintainer, Role.MAINTAINER)
    every, own = [await of_project.read(person) for person in (maintainer, of_project.former)]
    assert {event["author_id"] for event in every} >= {of_project.owner.id, of_project.former.id}
    assert {event["author_id"] for event in own} == {of_project.former.id}
    one = f"{of_project.url}/{own[0]['id']}"
    assert (await of_project.former.api.get(one)).status == 403
    assert (await maintainer.api.get(one)).status == 200


@says(
    "tiers",
    "audit events: Premium and Ultimate (instance audit events: self-managed and dedicated offerings only).",
)
async def test_which_tiers_and_offerings_have_them(shared_forge: SharedForges) -> None:
    for settings, statuses in (
        ({"tier": "free"}, [403, 403]),
        ({"tier": "premium", "offering": "dedicated"}, [200, 200]),
        ({"offering": "saas"}, [403, 200]),
    ):
        forge = await shared_forge(**settings)
        group = await forge.group()
        urls = ("/audit_events", f"/groups/{group['id']}/audit_events")
        assert [(await forge.root.get(url)).status for url in urls] == statuses, settings
