"""Endpoints 19-24: who may, what is answered and audited, and how lists are walked (decision D6)."""

import asyncio

import gitlab
import pytest

from tests.api_server.mirrors.service import SHOWN, URL, database, new_mirror, queued
from tests.support.forge import Forge, new_name


async def test_a_new_mirror_is_disabled_and_shows_no_credentials(answering: Forge) -> None:
    alice = await answering.user("alice")
    project = await answering.project(alice)
    made = await alice.api.post(f"/projects/{project['id']}/remote_mirrors", {"url": URL})
    assert made.status == 201
    assert list(made.body.items()) == [
        ("id", made.body["id"]),
        ("enabled", False),
        ("url", SHOWN),
        ("update_status", "none"),
        ("last_update_at", None),
        ("last_update_started_at", None),
        ("last_successful_update_at", None),
        ("last_error", None),
        ("only_protected_branches", False),
        ("keep_divergent_refs", False),
        ("auth_method", "password"),
        ("host_keys", []),
        ("mirror_branch_regex", None),
    ]
    path = f"/projects/{project['id']}/remote_mirrors"
    assert (await alice.api.get(f"{path}/{made.body['id']}")).body == made.body
    assert (await alice.api.get(path)).body == [made.body]
    assert await queued(answering, made.body["id"]) == []
    row = await database(answering).row(
        "SELECT remote_mirrors::text AS text FROM remote_mirrors WHERE id = %(id)s", id=made.body["id"]
    )
    assert "p@ss" not in row.text
    assert "p%40ss" not in row.text


@pytest.mark.parametrize(
    ("method", "tail", "values", "allowed"),
    [
        ("GET", "", None, 200),
        ("GET", "/{id}", None, 200),
        ("GET", "/{id}/public_key", None, 404),
        ("POST", "", {"url": "https://x.example.org/{n}.git"}, 201),
        ("PUT", "/{id}", {}, 200),
        ("POST", "/{id}/sync", None, 204),
        ("DELETE", "/{id}", None, 204),
    ],
)
async def test_maintainers_may_and_developers_may_not_and_strangers_see_nothing(
    answering: Forge, method: str, tail: str, values: dict[str, str] | None, allowed: int
) -> None:
    alice = await answering.user("alice")
    project = await answering.project(alice)
    people = await answering.people(project["id"])
    for name, status, message in (
        ("stranger", 404, "404 Project Not Found"),
        ("guest", 403, "403 Forbidden"),
        ("reporter", 403, "403 Forbidden"),
        ("developer", 403, "403 Forbidden"),
        ("maintainer", allowed, None),
        ("owner", allowed, None),
    ):
        url = f"https://{new_name('target')}.example.org/app.git"
        mirror = await new_mirror(answering, alice, project["id"], url, enabled=True)
        path = f"/projects/{project['id']}/remote_mirrors" + tail.replace("{id}", str(mirror["id"]))
        body = {"url": f"https://{new_name('other')}.example.org/app.git"} if values else values
        answer = await people[name].api.request(method, path, json=body)
        assert answer.status == status, (name, answer)
        if message:
            assert answer.body == {"message": message}
        await alice.api.delete(f"/projects/{project['id']}/remote_mirrors/{mirror['id']}")
    anonymous = await answering.anonymous.request(method, path)
    assert (anonymous.status, anonymous.body) == (401, {"message": "401 Unauthorized"})


@pytest.mark.parametrize("mirror_id", ["0", "999999999", "x", "1.5", "-1", "9223372036854775807"])
@pytest.mark.parametrize(
    ("method", "tail"), [("GET", ""), ("GET", "/public_key"), ("PUT", ""), ("POST", "/sync"), ("DELETE", "")]
)
async def test_an_unknown_mirror_is_not_found(
    answering: Forge, method: str, tail: str, mirror_id: str
) -> None:
    project = await answering.project()
    answer = await answering.root.request(
        method, f"/projects/{project['id']}/remote_mirrors/{mirror_id}{tail}"
    )
    assert (answer.status, answer.body) == (404, {"message": "404 Not found"})


async def test_the_mirror_of_another_project_is_not_found(answering: Forge) -> None:
    alice = await answering.user("alice")
    project, other = await answering.project(alice), await answering.project(alice)
    mirror = await new_mirror(answering, alice, project["id"], URL)
    for method, tail in (("GET", ""), ("PUT", ""), ("POST", "/sync"), ("DELETE", "")):
        answer = await alice.api.request(
            method, f"/projects/{other['id']}/remote_mirrors/{mirror['id']}{tail}"
        )
        assert (answer.status, answer.body) == (404, {"message": "404 Not found"})


async def test_the_list_is_walked_by_pages_and_by_keyset(answering: Forge) -> None:
    project = await answering.project()
    path = f"/projects/{project['id']}/remote_mirrors"
    ids = []
    for n in range(5):
        made = await answering.root.post(path, {"url": f"https://target.example.org/{n}.git"})
        ids.append(made.body["id"])
    page = await answering.root.get(f"{path}?per_page=2&page=2")
    assert [mirror["id"] for mirror in page.body] == ids[2:4]
    assert (page.headers["X-Total"], page.headers["X-Next-Page"]) == ("5", "3")
    walked: list[int] = []
    link: str | None = f"{path}?pagination=keyset&per_page=2&order_by=id&sort=asc"
    while link:
        page = await answering.root.get(link)
        walked += [mirror["id"] for mirror in page.body]
        link = page.headers.get("Link", "").removeprefix("<").partition(">")[0]
    assert walked == ids


async def test_each_change_is_in_the_audit_trail_without_secrets(answering: Forge) -> None:
    alice = await answering.user("alice")
    project = await answering.project(alice)
    mirror = await new_mirror(answering, alice, project["id"], URL)
    path = f"/projects/{project['id']}/remote_mirrors/{mirror['id']}"
    await alice.api.put(path, {"enabled": True, "url": "https://bob:n3w@target.example.org/group/app.git"})
    await alice.api.delete(path)
    rows = await database(answering).rows(
        "SELECT event_type, author_id, target_type, target_id, target_details, details::text AS details "
        "FROM audit_events WHERE entity_id = %(id)s AND event_type LIKE 'remote_mirror%%' ORDER BY id",
        id=project["id"],
    )
    assert [row[:5] for row in rows] == [
        (f"remote_mirror_{what}", alice.id, "RemoteMirror", mirror["id"], SHOWN)
        for what in ("created", "updated", "updated", "deleted")
    ]
    text = "".join(row.details for row in rows)
    assert '"change": "enabled"' in text
    assert '"from": "false"' in text
    assert '"change": "credentials"' in text
    assert not [secret for secret in ("p@ss", "p%40ss", "n3w", "bob", "example:") if secret in text]


async def test_python_gitlab_lists_creates_changes_syncs_and_deletes(answering: Forge) -> None:
    alice = await answering.user("alice")
    project = await answering.project(alice)

    def use_client() -> None:
        client = gitlab.Gitlab(answering.base, private_token=alice.token)
        mirrors = client.projects.get(project["id"]).remote_mirrors
        plain = "https://target.example.org/plain.git"
        mirror = mirrors.create({"url": plain, "enabled": True})
        assert mirrors.list()[0].url == plain
        mirror.only_protected_branches = True
        mirror.save()
        (again,) = mirrors.list(get_all=True)
        assert again.only_protected_branches is True
        assert again.url == plain
        mirror.sync()
        mirror.delete()
        assert mirrors.list() == []

    await asyncio.to_thread(use_client)
