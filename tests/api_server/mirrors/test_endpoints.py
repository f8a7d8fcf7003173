"""Endpoints 19-24 of mirrors: rights, answers, changes, refusals, audit events, and lists (decision D6)."""

import asyncio
from typing import Any

import gitlab
import pytest

from api_server.git.remote.ssh_keys import make_key_pair
from tests.api_server.mirrors.service import SHOWN, URL, new_mirror, queued, resolve_examples
from tests.support.forge import Forge, SharedForges, new_name
from tests.support.waiting import until_somebody_waits


@pytest.fixture(scope="module")
async def answering(shared_forge: SharedForges) -> Forge:
    """A server whose queue stands still, that may not call local addresses, and that resolves example.org."""
    return await shared_forge(change_app=resolve_examples)


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
    row = await answering.database.row(
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
    rows = await answering.database.rows(
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
    column = await answering.database.value(
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
    told = await answering.database.rows(
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
    """A.3; other parts stay the same, so that tools can compare URLs."""
    project = await answering.project()
    made = await answering.root.post(f"/projects/{project['id']}/remote_mirrors", {"url": entered})
    assert made.body["url"] == shown


@pytest.mark.parametrize("sent", [URL, SHOWN])
async def test_sending_the_same_url_again_changes_nothing(answering: Forge, sent: str) -> None:
    """Whether it is sent as it was entered or as it is shown. Its credentials and its results are kept."""
    project = await answering.project()
    path = f"/projects/{project['id']}/remote_mirrors"
    made = (await answering.root.post(path, {"url": URL})).body
    for status in ("started", "failed"):
        await answering.execute(
            "UPDATE remote_mirrors SET update_status = %(status)s, last_error = 'x' WHERE id = %(id)s",
            id=made["id"],
            status=status,
        )
    read = "SELECT credentials, url, run FROM remote_mirrors WHERE id = %(id)s"
    before = await answering.database.row(read, id=made["id"])
    again = await answering.root.put(f"{path}/{made['id']}", {"url": sent, "enabled": True})
    failed = made | {"update_status": "failed", "last_error": "x"}
    assert (again.status, again.body) == (200, failed | {"enabled": True})
    after = await answering.database.row(read, id=made["id"])
    assert (bytes(after.credentials), after.url, after.run) == (
        bytes(before.credentials),
        before.url,
        before.run,
    )
    events = await answering.root.get(
        f"/projects/{project['id']}/audit_events?event_type=remote_mirror_updated"
    )
    assert [event["details"]["change"] for event in events.body] == ["enabled"]


async def test_asterisks_are_no_credentials_for_another_url(answering: Forge) -> None:
    project = await answering.project()
    path = f"/projects/{project['id']}/remote_mirrors"
    made = (await answering.root.post(path, {"url": URL})).body
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
    async with answering.database.transaction() as transaction:
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
    async with answering.database.transaction() as transaction:
        await transaction.run("DELETE FROM remote_mirrors WHERE id = %(id)s", id=mirror)
        call = answering.root.request(method, f"{mirrors}/{mirror}{path}", json=body)
        called = asyncio.create_task(call)
        await until_somebody_waits(answering.database)
    answer = await called
    assert (answer.status, answer.body) == (404, {"message": "404 Not found"})


async def test_a_mirror_that_is_enabled_while_its_project_is_removed_is_404(answering: Forge) -> None:
    project = await answering.project()
    mirrors = f"/projects/{project['id']}/remote_mirrors"
    mirror = (await answering.root.post(mirrors, {"url": URL})).body["id"]
    async with answering.database.transaction() as transaction:
        await transaction.run("SELECT FROM projects WHERE id = %(id)s FOR UPDATE", id=project["id"])
        called = asyncio.create_task(answering.root.put(f"{mirrors}/{mirror}", {"enabled": True}))
        await until_somebody_waits(answering.database)
        await transaction.run("DELETE FROM projects WHERE id = %(id)s", id=project["id"])
    answer = await called
    assert (answer.status, answer.body) == (404, {"message": "404 Not found"})


@pytest.mark.parametrize(
    ("values", "body"),
    [
        ({}, {"error": "url is missing"}),
        ({"url": ""}, {"message": {"url": [BLANK]}}),
        ({"url": URL, "auth_method": "x"}, {"error": "auth_method does not have a valid value"}),
        ({"url": URL, "enabled": "maybe"}, {"error": "enabled is invalid"}),
        ({"url": URL, "only_protected_branches": None}, {"message": {"only_protected_branches": [BLANK]}}),
        (
            {"url": URL, "only_protected_branches": True, "mirror_branch_regex": "x"},
            {"error": "only_protected_branches, mirror_branch_regex are mutually exclusive"},
        ),
        (
            {"url": URL, "host_keys": ["ssh-ed25519 nonsense"]},
            {"message": "Invalid SSH host key(s): ssh-ed25519 nonsense"},
        ),
        ({"url": URL, "host_keys": ["x"] * 11}, {"message": "too many host keys (maximum is 10)"}),
        (
            {"url": "ftp://target.example.org/x"},
            {"message": {"url": ["is blocked: Only allowed schemes are http, https, ssh, git"]}},
        ),
        (
            {"url": SHOWN},
            {"message": {"url": ["has asterisks for credentials; send the user name and the password"]}},
        ),
    ],
)
async def test_what_cannot_be_created_is_refused_in_words(
    answering: Forge, values: dict[str, Any], body: dict[str, Any]
) -> None:
    project = await answering.project()
    answer = await answering.root.post(f"/projects/{project['id']}/remote_mirrors", values)
    assert (answer.status, answer.body) == (400, body)
    assert (await answering.root.get(f"/projects/{project['id']}/remote_mirrors")).body == []


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("git@target.example.org:app.git", "Only allowed schemes are http, https, ssh, git"),
        ("ext::sh -c id", "URI is invalid"),
        (
            "https://-oProxyCommand=x@target.example.org/x",
            "Username needs to start with an alphanumeric character",
        ),
        ("ssh://-oProxyCommand=x/x", "Hostname or IP address invalid"),
        ("http://localhost/x.git", "Requests to localhost are not allowed"),
        ("http://127.0.0.1/x.git", "Requests to loopback addresses are not allowed"),
        ("http://[::1]/x.git", "Requests to loopback addresses are not allowed"),
        ("https://10-1-2-3.example.org/x.git", "Requests to the local network are not allowed"),
        ("https://[::ffff:10.0.0.1]/x.git", "Requests to the local network are not allowed"),
        ("http://169.254.169.254/x.git", "Requests to the link local network are not allowed"),
        ("http://100.64.0.1/x.git", "Requests to the shared address space are not allowed"),
        ("http://255.255.255.255/x.git", "Requests to the limited broadcast address are not allowed"),
        (f"https://{'a' * 1025}/x.git", "Host is too long (maximum is 1024 characters)"),
    ],
)
@pytest.mark.parametrize("method", ["POST", "PUT"])
async def test_urls_that_must_not_be_called_are_blocked(
    answering: Forge, method: str, url: str, text: str
) -> None:
    """GitLab's texts (A.4), when a mirror is created and when its URL is changed."""
    project = await answering.project()
    path = f"/projects/{project['id']}/remote_mirrors"
    if method == "PUT":
        path += f"/{(await answering.root.post(path, {'url': URL})).body['id']}"
    answer = await answering.root.request(method, path, json={"url": url})
    assert (answer.status, answer.body) == (400, {"message": {"url": [f"is blocked: {text}"]}})


async def test_a_name_that_does_not_resolve_yet_may_be_mirrored_to(answering: Forge) -> None:
    """As in GitLab; each run resolves it again."""
    project, url = await answering.project(), "https://unknown.invalid/x.git"
    path = f"/projects/{project['id']}/remote_mirrors"
    made = await answering.root.post(path, {"url": url})
    assert (made.status, made.body["url"]) == (201, url)
    changed = await answering.root.put(f"{path}/{made.body['id']}", {"url": "https://other.invalid/x.git"})
    assert (changed.status, changed.body["url"]) == (200, "https://other.invalid/x.git")


async def test_one_url_is_mirrored_to_once_per_project_whatever_its_credentials(answering: Forge) -> None:
    project, other = await answering.project(), await answering.project()
    path = f"/projects/{project['id']}/remote_mirrors"
    assert (await answering.root.post(path, {"url": URL})).status == 201
    for url in (
        URL,
        "https://target.example.org/group/app.git",
        "https://x@Target.example.org:443/group/app.git/",
    ):
        answer = await answering.root.post(path, {"url": url})
        assert (answer.status, answer.body) == (400, {"message": {"url": ["has already been taken"]}})
    second = await answering.root.post(path, {"url": "https://target.example.org/group/other.git"})
    answer = await answering.root.put(f"{path}/{second.body['id']}", {"url": URL})
    assert (answer.status, answer.body) == (400, {"message": {"url": ["has already been taken"]}})
    assert (await answering.root.post(f"/projects/{other['id']}/remote_mirrors", {"url": URL})).status == 201


@pytest.mark.parametrize("method", ["POST", "PUT"])
@pytest.mark.parametrize("form", ["{base}/{path}.git", "{base}/{path}", "{with_user}/{path}.git/"])
async def test_a_project_is_not_mirrored_to_itself(answering: Forge, form: str, method: str) -> None:
    project = await answering.project()
    path = f"/projects/{project['id']}/remote_mirrors"
    if method == "PUT":
        path += f"/{(await answering.root.post(path, {'url': URL})).body['id']}"
    with_user = answering.base.replace("://", "://alice:secret@")
    url = form.format(base=answering.base, with_user=with_user, path=project["path_with_namespace"])
    answer = await answering.root.request(method, path, json={"url": url})
    text = "You cannot mirror a repository to itself."
    assert (answer.status, answer.body) == (400, {"message": {"base": [text]}})


async def test_ten_mirrors_may_be_enabled(answering: Forge) -> None:
    project = await answering.project()
    path = f"/projects/{project['id']}/remote_mirrors"
    wanted = [{"url": f"https://t{n}.example.org/x.git", "enabled": True} for n in range(12)]
    made = await asyncio.gather(*(answering.root.post(path, values) for values in wanted))
    assert sorted(answer.status for answer in made) == [201] * 10 + [400] * 2
    refusal = {"message": {"base": ["Maximum number of push mirrors (10) exceeded for this project."]}}
    assert [answer.body for answer in made if answer.status == 400] == [refusal] * 2
    disabled = await answering.root.post(path, {"url": "https://more.example.org/x.git"})
    assert disabled.status == 201
    refused = await answering.root.put(f"{path}/{disabled.body['id']}", {"enabled": True})
    assert (refused.status, refused.body) == (400, refusal)
    enabled = next(answer.body for answer in made if answer.status == 201)
    assert (await answering.root.put(f"{path}/{enabled['id']}", {"enabled": True})).status == 200


async def test_sync_queues_one_run_however_often_it_is_asked_for(answering: Forge) -> None:
    alice = await answering.user("alice")
    project = await answering.project(alice)
    mirror = await new_mirror(answering, alice, project["id"], URL, enabled=True)
    path = f"/projects/{project['id']}/remote_mirrors/{mirror['id']}"
    for _ in range(3):
        answer = await alice.api.post(f"{path}/sync")
        assert (answer.status, answer.body) == (204, "")
    (job,) = await queued(answering, mirror["id"])
    assert job.scheduled_at is None


@pytest.mark.parametrize(("only_protected", "seconds"), [(False, 300), (True, 60)])
async def test_a_run_soon_after_the_last_one_waits_a_full_back_off(
    answering: Forge, only_protected: bool, seconds: int
) -> None:
    """A.6."""
    alice = await answering.user("alice")
    project = await answering.project(alice)
    mirror = await new_mirror(
        answering, alice, project["id"], URL, enabled=True, only_protected_branches=only_protected
    )
    async with answering.database.transaction() as transaction:
        await transaction.row(
            "UPDATE remote_mirrors SET last_update_started_at = %(now)s - interval '50 seconds' WHERE id = %(id)s",
            id=mirror["id"],
        )
    path = f"/projects/{project['id']}/remote_mirrors/{mirror['id']}"
    assert (await alice.api.post(f"{path}/sync")).status == 204
    waits = await answering.database.value(
        "SELECT extract(epoch FROM scheduled_at - %(now)s) FROM procrastinate_jobs WHERE lock = %(lock)s",
        lock=f"remote_mirror:{mirror['id']}",
    )
    assert seconds - 5 < waits <= seconds


@pytest.mark.parametrize("why", ["the mirror", "the repository"])
async def test_what_is_disabled_is_not_synced(answering: Forge, why: str) -> None:
    alice = await answering.user("alice")
    project = await answering.project(alice)
    mirror = await new_mirror(answering, alice, project["id"], URL, enabled=why == "the repository")
    if why == "the repository":
        values = {"repository_access_level": "disabled"}
        assert (await alice.api.put(f"/projects/{project['id']}", values)).status == 200
    path = f"/projects/{project['id']}/remote_mirrors/{mirror['id']}"
    assert (await alice.api.get(path)).body["enabled"] is False
    answer = await alice.api.post(f"{path}/sync")
    text = "Cannot proceed with the push mirroring. Please verify your mirror configuration."
    assert (answer.status, answer.body) == (400, {"message": text})


async def test_a_mirror_that_has_changed_since_it_was_seen_is_not_deleted(answering: Forge) -> None:
    project = await answering.project()
    path = f"/projects/{project['id']}/remote_mirrors"
    path += f"/{(await answering.root.post(path, {'url': URL})).body['id']}"
    stale = {"If-Unmodified-Since": "Thu, 01 Jan 1998 00:00:00 GMT"}
    answer = await answering.root.delete(path, headers=stale)
    assert (answer.status, answer.body) == (412, {"message": "412 Precondition Failed"})
    fresh = {"If-Unmodified-Since": "Fri, 01 Jan 2100 00:00:00 GMT"}
    assert (await answering.root.delete(path, headers=fresh)).status == 204
    assert (await answering.root.get(path)).status == 404
