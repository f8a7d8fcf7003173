"""Changing a mirror: only what is sent, with credentials that are never shown and keys that are (decision D6)."""

import asyncio
from typing import Any

import pytest

from api_server.git.remote.ssh_keys import make_key_pair
from tests.api_server.mirrors.service import SHOWN, URL, database
from tests.support.forge import Forge, SharedForges
from tests.support.waiting import until_somebody_waits

BLANK = "can't be blank"


async def test_only_what_is_sent_changes(answering: Forge) -> None:
    project = await answering.project()
    path = f"/projects/{project['id']}/remote_mirrors"
    made = (await answering.root.post(path, {"url": URL, "keep_divergent_refs": True})).body
    path += f"/{made['id']}"
    unchanged = await answering.root.put(path, {})
    assert (unchanged.status, unchanged.body) == (200, made)
    changed = await answering.root.put(path, {"enabled": "1", "keep_divergent_refs": "false"})
    assert changed.body == made | {"enabled": True, "keep_divergent_refs": False}
    refused = await answering.root.put(path, {"auth_method": "x"})
    assert (refused.status, refused.body) == (
        400,
        {"message": {"auth_method": ["is not included in the list"]}},
    )
    refused = await answering.root.put(path, {"only_protected_branches": None})
    assert (refused.status, refused.body) == (400, {"message": {"only_protected_branches": [BLANK]}})


async def test_a_regex_and_protected_branches_replace_each_other(answering: Forge) -> None:
    project = await answering.project()
    path = f"/projects/{project['id']}/remote_mirrors"
    made = (await answering.root.post(path, {"url": URL, "mirror_branch_regex": "release/.*"})).body
    assert (made["only_protected_branches"], made["mirror_branch_regex"]) == (False, "release/.*")
    path += f"/{made['id']}"
    steps = [
        ({"only_protected_branches": True}, True, None),
        ({"mirror_branch_regex": "x|y"}, False, "x|y"),
        ({"mirror_branch_regex": ""}, False, None),
    ]
    for values, only_protected, regex in steps:
        changed = (await answering.root.put(path, values)).body
        assert (changed["only_protected_branches"], changed["mirror_branch_regex"]) == (only_protected, regex)
    refused = await answering.root.put(path, {"mirror_branch_regex": r"(?=x)"})
    assert refused.status == 400
    assert refused.body["message"]["mirror_branch_regex"][0].startswith("is not a valid RE2 expression")


async def test_a_regex_needs_premium(shared_forge: SharedForges) -> None:
    forge = await shared_forge(tier="free")
    project = await forge.project()
    path = f"/projects/{project['id']}/remote_mirrors"
    values = {"url": "https://203.0.113.7/x.git"}
    refused = await forge.root.post(path, values | {"mirror_branch_regex": "x"})
    text = "403 Forbidden - Mirror branch regex is not available on the free tier"
    assert (refused.status, refused.body) == (403, {"message": text})
    assert (await forge.root.post(path, values)).status == 201


async def test_a_mirror_that_logs_in_by_key_gets_a_pair_whose_public_half_is_shown(answering: Forge) -> None:
    project = await answering.project()
    path = f"/projects/{project['id']}/remote_mirrors"
    values = {"url": "ssh://git@target.example.org/app.git", "auth_method": "ssh_public_key"}
    made = (await answering.root.post(path, values)).body
    assert (made["url"], made["auth_method"]) == ("ssh://git@target.example.org/app.git", "ssh_public_key")
    key = await answering.root.get(f"{path}/{made['id']}/public_key")
    assert key.status == 200
    assert list(key.body) == ["public_key"]
    assert key.body["public_key"].startswith("ssh-ed25519 AAAA")
    assert key.body["public_key"].endswith(" git@127.0.0.1")
    await answering.root.put(f"{path}/{made['id']}", {"enabled": True})
    assert (await answering.root.get(f"{path}/{made['id']}/public_key")).body == key.body
    await answering.root.put(f"{path}/{made['id']}", {"auth_method": "password"})
    assert (await answering.root.get(f"{path}/{made['id']}/public_key")).status == 404
    by_https = (await answering.root.post(path, {"url": URL, "auth_method": "ssh_public_key"})).body
    assert (await answering.root.get(f"{path}/{by_https['id']}/public_key")).status == 404


async def test_host_keys_are_pinned_shown_by_fingerprint_and_cleared(answering: Forge) -> None:
    project = await answering.project()
    path = f"/projects/{project['id']}/remote_mirrors"
    key = make_key_pair("host").public
    values = {"url": "ssh://git@target.example.org:2222/app.git", "host_keys": [key.replace("+", " ")]}
    made = (await answering.root.post(path, values)).body
    (shown,) = made["host_keys"]
    assert list(shown) == ["fingerprint_sha256"]
    assert shown["fingerprint_sha256"].startswith("SHA256:")
    column = await database(answering).value(
        "SELECT host_keys -> 0 ->> 'line' FROM remote_mirrors WHERE id = %(id)s", id=made["id"]
    )
    assert column == "[target.example.org]:2222 " + " ".join(key.split()[:2])
    path += f"/{made['id']}"
    assert (await answering.root.put(path, {"enabled": True})).body["host_keys"] == [shown]
    refused = await answering.root.put(path, {"host_keys": [key, "x"]})
    assert (refused.status, refused.body) == (400, {"message": "Invalid SSH host key(s): x"})
    assert (await answering.root.put(path, {"host_keys": []})).body["host_keys"] == []
    await answering.root.put(path, {"host_keys": [key]})
    moved = await answering.root.put(path, {"url": "ssh://git@other.example.org/app.git"})
    assert moved.body["host_keys"] == []


async def test_host_keys_that_are_sent_again_are_no_change(answering: Forge) -> None:
    project = await answering.project()
    key = make_key_pair("host").public
    values = {"url": "ssh://git@target.example.org/app.git", "host_keys": [key]}
    path = f"/projects/{project['id']}/remote_mirrors"
    path += f"/{(await answering.root.post(path, values)).body['id']}"
    assert (await answering.root.put(path, {"host_keys": [key], "keep_divergent_refs": True})).status == 200
    told = await database(answering).rows(
        "SELECT details ->> 'change' AS change FROM audit_events "
        "WHERE event_type = 'remote_mirror_updated' AND entity_id = %(id)s",
        id=project["id"],
    )
    assert [event.change for event in told] == ["keep_divergent_refs"]


@pytest.mark.parametrize(
    ("entered", "shown"),
    [
        (URL, SHOWN),
        ("https://user@target.example.org/a.git", "https://*****@target.example.org/a.git"),
        ("ssh://git@target.example.org/a.git", "ssh://git@target.example.org/a.git"),
        ("ssh://bob@target.example.org/a.git", "ssh://*****@target.example.org/a.git"),
        ("http://target.example.org/a.git", "http://target.example.org/a.git"),
    ],
)
async def test_urls_are_shown_without_credentials_and_otherwise_unchanged(
    answering: Forge, entered: str, shown: str
) -> None:
    """A.3; what tools compare stays comparable."""
    project = await answering.project()
    made = await answering.root.post(f"/projects/{project['id']}/remote_mirrors", {"url": entered})
    assert made.body["url"] == shown


async def test_sending_back_the_shown_url_keeps_the_credentials(answering: Forge) -> None:
    project = await answering.project()
    path = f"/projects/{project['id']}/remote_mirrors"
    made = (await answering.root.post(path, {"url": URL})).body
    read = "SELECT credentials, url FROM remote_mirrors WHERE id = %(id)s"
    before = await database(answering).row(read, id=made["id"])
    again = await answering.root.put(f"{path}/{made['id']}", {"url": SHOWN, "enabled": True})
    assert (again.status, again.body) == (200, made | {"enabled": True})
    after = await database(answering).row(read, id=made["id"])
    assert (bytes(after.credentials), after.url) == (bytes(before.credentials), before.url)
    elsewhere = await answering.root.put(
        f"{path}/{made['id']}", {"url": "https://*****:*****@thief.example.org/x.git"}
    )
    text = "has asterisks for credentials; send the user name and the password"
    assert (elsewhere.status, elsewhere.body) == (400, {"message": {"url": [text]}})


async def test_new_credentials_make_a_mirror_forget_how_it_went(answering: Forge) -> None:
    """A.5: the status becomes finished, the rest null."""
    project = await answering.project()
    path = f"/projects/{project['id']}/remote_mirrors"
    made = (await answering.root.post(path, {"url": URL})).body
    async with database(answering).transaction() as transaction:
        for status in ("started", "failed"):
            await transaction.row(
                "UPDATE remote_mirrors SET update_status = %(status)s, last_error = 'x', last_update_at = %(now)s, "
                "last_update_started_at = %(now)s, last_successful_update_at = %(now)s WHERE id = %(id)s",
                id=made["id"],
                status=status,
            )
    changed = await answering.root.put(
        f"{path}/{made['id']}", {"url": "https://new:token@target.example.org/group/app.git"}
    )
    started = changed.body.pop("last_update_started_at")
    assert started is not None
    made.pop("last_update_started_at")
    assert changed.body == made | {"update_status": "finished"}


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [("PUT", "", {"enabled": True}), ("POST", "/sync", None), ("DELETE", "", None)],
)
async def test_a_mirror_that_is_removed_meanwhile_is_404(
    answering: Forge, method: str, path: str, body: dict[str, Any] | None
) -> None:
    project = await answering.project()
    mirrors = f"/projects/{project['id']}/remote_mirrors"
    mirror = (await answering.root.post(mirrors, {"url": URL, "enabled": True})).body["id"]
    async with database(answering).transaction() as transaction:
        await transaction.run("DELETE FROM remote_mirrors WHERE id = %(id)s", id=mirror)
        call = answering.root.request(method, f"{mirrors}/{mirror}{path}", json=body)
        called = asyncio.create_task(call)
        await until_somebody_waits(database(answering))
    answer = await called
    assert (answer.status, answer.body) == (404, {"message": "404 Not found"})


async def test_a_mirror_that_is_enabled_while_its_project_is_removed_is_404(answering: Forge) -> None:
    project = await answering.project()
    mirrors = f"/projects/{project['id']}/remote_mirrors"
    mirror = (await answering.root.post(mirrors, {"url": URL})).body["id"]
    async with database(answering).transaction() as transaction:
        await transaction.run("SELECT FROM projects WHERE id = %(id)s FOR UPDATE", id=project["id"])
        called = asyncio.create_task(answering.root.put(f"{mirrors}/{mirror}", {"enabled": True}))
        await until_somebody_waits(database(answering))
        await transaction.run("DELETE FROM projects WHERE id = %(id)s", id=project["id"])
    answer = await called
    assert (answer.status, answer.body) == (404, {"message": "404 Not found"})
