"""`forgelet user`, `token` and `runner`, beside a running server, with the same results as the API."""

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from api_server.web.context import SERVICES
from tests.forgelet.commands.running import answer, mistake, run
from tests.support.browser import browsing
from tests.support.forge import Client, Forge, new_name, running_forge

PASSWORD = "correct horse battery"
EVENTS = """
    SELECT event_type, author_id, author_name, entity_type, entity_path, target_details FROM audit_events
    ORDER BY id DESC LIMIT 1
"""


@pytest.fixture(scope="module")
async def here(new_database: Callable[[], str], tmp_path_factory: Any) -> AsyncIterator[Forge]:
    async with running_forge(new_database(), tmp_path_factory.mktemp("accounts"), work=False) as forge:
        await forge.group(path="taken-by-a-group")
        yield forge


async def new_user(forge: Forge, *options: str) -> str:
    username = new_name("ann")
    given = ("--username", username, "--email", f"{username}@example.org", "--name", "Ann", *options)
    made = answer(await run(forge, "user", "create", *given, "--json", given=f"{PASSWORD}\n"))
    assert made["username"] == username
    return username


async def last_event(forge: Forge) -> tuple[str, str, str]:
    """Return type, entity and target of the newest event, whose author is the operator on this machine."""
    event = await forge.database.one(EVENTS)
    assert event.author_id == -1
    assert event.author_name.endswith(" (command line)")
    return event.event_type, event.entity_path, event.target_details


def client(forge: Forge, token: str) -> Client:
    return Client(forge.session, forge.base, token)


async def opens(forge: Forge, username: str, password: str) -> bool:
    """Return whether the password gives access to the account."""
    account = await forge.database.one(
        "SELECT password_hash FROM users WHERE username = %(name)s", name=username
    )
    return forge.server.app[SERVICES].vault.password_matches(password, account.password_hash)


async def test_a_new_user_can_do_what_everybody_can(here: Forge) -> None:
    username = await new_user(here)
    assert await last_event(here) == ("user_created", username, username)
    token = (await run(here, "token", "create", "--user", username, "--name", "t", "--scope", "api")).stdout
    assert await last_event(here) == ("personal_access_token_created", username, "Ann")
    hers = client(here, token.strip())
    me = (await hers.get("/user")).body
    assert (me["username"], me["name"], me["confirmed_at"] is None) == (username, "Ann", False)
    assert (await hers.post("/projects", {"name": "first"})).body[
        "path_with_namespace"
    ] == f"{username}/first"


async def test_an_administrator_is_made_as_one(here: Forge) -> None:
    username = await new_user(here, "--admin")
    made = await run(here, "token", "create", "--user", username, "--name", "t", "--scope", "api", "--json")
    assert (await client(here, answer(made)["token"]).get("/application/settings")).status == 200


async def test_users_are_listed_with_what_administrators_see(here: Forge) -> None:
    username = await new_user(here)
    (listed,) = answer(await run(here, "user", "list", "--search", username, "--json"))
    assert (listed["username"], listed["email"], listed["is_admin"]) == (
        username,
        f"{username}@example.org",
        False,
    )
    assert "\n" in (await run(here, "user", "list", "--limit", "2")).stdout


async def test_a_token_has_its_scopes_and_its_end_and_is_revoked(here: Forge) -> None:
    username = await new_user(here)
    create = ("token", "create", "--user", username, "--name", "t")
    made = answer(
        await run(
            here,
            *create,
            "--scope",
            "read_user",
            "--scope",
            "read_api",
            "--expires-at",
            "2199-01-02",
            "--json",
        )
    )
    assert (made["scopes"], made["expires_at"]) == (["read_user", "read_api"], "2199-01-02")
    hers = client(here, made["token"])
    assert (await hers.get("/user")).status == 200
    listed = answer(await run(here, "token", "list", "--user", username, "--json"))
    assert [(token["id"], token["name"], token["scopes"]) for token in listed] == [
        (made["id"], "t", ["read_user", "read_api"])
    ]
    revoked = await run(here, "--json", "token", "revoke", str(made["id"]))
    assert answer(revoked) == {"id": made["id"], "username": username, "revoked": True}
    assert await last_event(here) == ("personal_access_token_revoked", username, "Ann")
    assert answer(await run(here, "token", "list", "--user", username, "--json")) == []
    listed = answer(await run(here, "token", "list", "--user", username, "--all", "--json"))
    assert [(token["id"], token["revoked"]) for token in listed] == [(made["id"], True)]
    assert mistake(await run(here, "token", "list", "--user", "nobody")) == "There is no user nobody"
    here.database.note_change()
    assert (await hers.get("/user")).status == 401
    assert (
        mistake(await run(here, "token", "revoke", "999999"))
        == "There is no personal access token with id 999999"
    )


async def test_blocked_users_are_let_in_nowhere_until_they_are_unblocked(here: Forge) -> None:
    username = await new_user(here)
    made = await run(here, "token", "create", "--user", username, "--name", "t", "--scope", "api")
    hers = client(here, made.stdout.strip())
    assert answer(await run(here, "user", "block", username, "--json"))["changed"] is True
    assert await last_event(here) == ("user_blocked", username, username)
    here.database.note_change()
    assert (await hers.get("/user")).status == 403
    assert (await run(here, "user", "block", username)).stdout == f"{username} is blocked already.\n"
    assert (await run(here, "user", "unblock", username)).stdout == f"{username} is active.\n"
    assert await last_event(here) == ("user_unblocked", username, username)
    here.database.note_change()
    assert (await hers.get("/user")).status == 200


async def test_a_password_is_replaced(here: Forge) -> None:
    username = await new_user(here)
    assert (await run(here, "user", "password", username, given="another one\n")).exit_code == 0
    assert await last_event(here) == ("user_password_updated", username, username)
    assert not await opens(here, username, PASSWORD)
    assert await opens(here, username, "another one")
    assert (await run(here, "user", "password", username, "--password", PASSWORD)).exit_code == 0
    assert await opens(here, username, PASSWORD)


async def test_runners_serve_the_instance_a_group_or_a_project(here: Forge) -> None:
    owner = await here.user("owner")
    project, group = await here.project(owner), await here.group(owner)
    kinds = {
        "instance_type": (),
        "group_type": ("--group", group["full_path"]),
        "project_type": ("--project", project["path_with_namespace"]),
    }
    for kind, options in kinds.items():
        made = answer(await run(here, "runner", "create", "--tag", "a", "--json", *options))
        assert (await last_event(here))[0] == "runner_registered"
        runner = (await here.root.get(f"/runners/{made['id']}")).body
        assert (runner["runner_type"], runner["tag_list"]) == (kind, ["a"])
        assert (await here.root.post("/runners/verify", {"token": made["token"]})).status == 200


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            "user create --username root --email new@example.org --name N",
            "Username has already been taken",
        ),
        (
            "user create --username taken-by-a-group --email new@example.org --name N",
            "Username has already been taken",
        ),
        (
            "user create --username newcomer --email root@localhost --name N",
            "Email has already been taken",
        ),
        (
            "user create --username .new --email nobody --name N",
            "Email is invalid; username can contain only letters, digits, '_', '-' and '.'."
            " Cannot start with '-', end in '.git' or end in '.atom'",
        ),
        (
            "user create --username newcomer --email new@example.org --name N --password short",
            "The password is too short (minimum is 8 characters)",
        ),
        (
            "user create --username newcomer --email new@example.org --name N",
            "No password was given: type it, send it through standard input, or use --password",
        ),
        ("user create --username newcomer --email new@example.org", "Missing option '--name'"),
        ("user block nobody-here", "There is no user nobody-here"),
        ("user password nobody-here", "There is no user nobody-here"),
        ("token create --user nobody-here --name t --scope api", "There is no user nobody-here"),
        ("token create --user root --scope api", "Missing option '--name'"),
        (
            "token create --user root --name t --scope api --expires-at soon",
            "Invalid value for '--expires-at': 'soon' does not match the format '%Y-%m-%d'",
        ),
        (
            "token create --user root --name t --scope api --expires-at 2020-01-01",
            "--expires-at has to be a day in the future: the token would never work",
        ),
        (
            "runner create --project a --group b",
            "--project and --group contradict each other: give one of them",
        ),
        ("runner create --project none/such", "There is no project none/such"),
        (
            "runner create --tagged-only",
            "Tags list can not be empty when runner is not allowed to pick untagged jobs",
        ),
    ],
)
async def test_a_mistake_is_one_sentence_and_nothing_is_done(
    here: Forge, arguments: str, sentence: str
) -> None:
    count = "SELECT (SELECT count(*) FROM audit_events) AS events"
    before = await here.database.one(count)
    assert mistake(await run(here, *arguments.split(), given="")) == sentence
    assert await here.database.one(count) == before


async def test_a_link_signs_in_once_and_only_people(here: Forge) -> None:
    username = await new_user(here)
    link = (await run(here, "user", "sign-in-link", username)).stdout.strip()
    assert link.startswith("http://127.0.0.1:8080/-/sign_in/"), "the server's own address"
    async with browsing(here) as browser:
        path = link.removeprefix("http://127.0.0.1:8080")
        await browser.get(path)
        await browser.send(path)
        assert (browser.status, browser.title, username in browser.text) == (200, "Your projects", True)
    assert mistake(await run(here, "user", "sign-in-link", "nobody")) == "There is no user nobody"
