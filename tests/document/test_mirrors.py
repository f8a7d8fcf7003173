"""Area 3: remote (push) mirrors of a project."""

import re
from collections.abc import AsyncIterator, Callable
from typing import Any

import attrs
import pytest

from tests.api_server.mirrors.service import resolve_examples
from tests.support.forge import Answer, Forge, Person, SharedForges, new_name, running_forge

from .statements import says

HOST = "target.example.org"
MASKED = re.compile(r"https://\*+:\*+@target\.example\.org/[\w-]+\.git")
TIMESTAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
FIELDS = {
    "id": int,
    "enabled": bool,
    "auth_method": str,
    "url": str,
    "update_status": str,
    "last_error": str | None,
    "last_update_started_at": str | None,
    "last_update_at": str | None,
    "last_successful_update_at": str | None,
    "only_protected_branches": bool,
    "keep_divergent_refs": bool,
}


@attrs.frozen
class Mirrors:
    """A project, by id and by path, and its Maintainer."""

    forge: Forge
    urls: tuple[str, str]
    owner: Person

    @property
    def url(self) -> str:
        return self.urls[0]

    async def create(self, **values: Any) -> Answer:
        target = f"https://example:p%40ss@{HOST}/{new_name('app')}.git"
        return await self.owner.api.post(self.url, {"url": target} | values)

    async def made(self, **values: Any) -> tuple[str, dict[str, Any]]:
        """Create a mirror; return its path, and its content."""
        answer = await self.create(**values)
        assert answer.status == 201, answer
        return f"{self.url}/{answer.body['id']}", dict(answer.body)


async def _mirrors(forge: Forge) -> Mirrors:
    owner = await forge.user("owner")
    project = await forge.project(owner)
    path = project["path_with_namespace"].replace("/", "%2F")
    return Mirrors(
        forge, (f"/projects/{project['id']}/remote_mirrors", f"/projects/{path}/remote_mirrors"), owner
    )


@pytest.fixture(scope="module")
async def mirrors(
    new_database: Callable[[], str], tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Mirrors]:
    """Mirrors of a server that resolves example.org, and sends no requests."""
    folder = tmp_path_factory.mktemp("mirrors")
    async with running_forge(new_database(), folder, resolve_examples, work=False) as forge:
        yield await _mirrors(forge)


@says(
    "mirrors",
    "List, read, create, update, force-sync and delete push mirrors of a project.",
    "Credentials in mirror URLs are always masked in responses.",
    "| url | string | target URL with username and password replaced by asterisks, always |",
    "| 20 | GET `/projects/:id/remote_mirrors/:mirror_id` | `id`, `mirror_id` integer | Remote mirror |",
)
async def test_credentials_are_masked_always(mirrors: Mirrors) -> None:
    one, made = await mirrors.made()
    changed = (await mirrors.owner.api.put(one, {"enabled": False})).body
    shown = (await mirrors.owner.api.get(one)).body
    listed = (await mirrors.owner.api.get(f"{mirrors.url}?per_page=100")).body
    assert all(MASKED.fullmatch(mirror["url"]) for mirror in (made, changed, shown, *listed))


@says(
    "mirrors",
    "| id | integer | |",
    "| auth_method | string | `ssh_public_key` or `password`; absent in the single-mirror read example |",
    "| last_error | null or error text | type when non-null: not shown |",
    "| last_update_started_at | timestamp or null | |",
    "| last_update_at | timestamp or null | |",
    "| last_successful_update_at | timestamp or null | |",
    "| only_protected_branches | boolean | |",
    "| keep_divergent_refs | boolean | |",
    "| enabled | boolean | false on creation unless requested |",
)
async def test_what_a_mirror_shows(mirrors: Mirrors) -> None:
    one, made = await mirrors.made()
    for mirror in (made, (await mirrors.owner.api.get(one)).body):
        assert {name: mirror[name] for name in FIELDS} == {
            name: value for name, value in mirror.items() if name in FIELDS
        }
        assert all(isinstance(mirror[name], kind) for name, kind in FIELDS.items()), mirror


@says(
    "mirrors",
    "| update_status | string | seen: `none` (never run), `finished` |",
    "| any | POST sync | update forced | 204 |",
    "| 23 sync mirror | 204 | success | empty |",
    "| 23 | POST `/projects/:id/remote_mirrors/:mirror_id/sync` | `id` integer/string, `mirror_id` integer, both"
    " required | 204, empty body |",
)
async def test_a_mirror_is_synchronised(mirrors: Mirrors) -> None:
    """The transfer itself is tested in `tests/api_server/mirrors/`, with real targets."""
    one, made = await mirrors.made(enabled=True)
    assert made["update_status"] == "none"
    by_path = f"{mirrors.urls[1]}/{made['id']}"
    for path in (one, by_path):
        synced = await mirrors.owner.api.post(f"{path}/sync")
        assert (synced.status, synced.body) == (204, "")
    queued = await mirrors.forge.database.value(
        "SELECT count(*) FROM procrastinate_jobs WHERE lock = %(lock)s", lock=f"remote_mirror:{made['id']}"
    )
    assert queued > 0


@says("mirrors", "| 19 | GET `/projects/:id/remote_mirrors` | `id` | array of Remote mirror |")
async def test_mirrors_are_listed(mirrors: Mirrors) -> None:
    _, made = await mirrors.made()
    for url in mirrors.urls:
        listed = await mirrors.owner.api.get(f"{url}?per_page=100")
        assert (listed.status, made in listed.body) == (200, True)


@says(
    "mirrors",
    "`url` string required (target URL);",
    "all but `url` optional | Remote mirror (new mirror: `enabled` false, `update_status` `none`, timestamps null,"
    " flags false by default)",
    "| created | POST create | `update_status` = `none`, `enabled` = false unless `enabled` sent | timestamps null |",
    "Push mirroring is disabled by default and enabled by sending `enabled`.",
)
async def test_a_new_mirror_does_nothing_yet(mirrors: Mirrors) -> None:
    missing = await mirrors.owner.api.post(mirrors.url, {"enabled": True})
    assert (missing.status, missing.body) == (400, {"error": "url is missing"})
    _, made = await mirrors.made()
    times = ("last_update_started_at", "last_update_at", "last_successful_update_at")
    assert [made[name] for name in times] == [None] * 3
    assert [made[name] for name in ("enabled", "only_protected_branches", "keep_divergent_refs")] == [
        False
    ] * 3
    assert made["update_status"] == "none"
    _, enabled = await mirrors.made(enabled=True)
    assert enabled["enabled"] is True


@says(
    "mirrors",
    "`enabled` boolean; `keep_divergent_refs` boolean; `only_protected_branches` boolean;",
    "`auth_method` string (`ssh_public_key` or `password`);",
)
@pytest.mark.parametrize(
    "value",
    [
        {"keep_divergent_refs": True},
        {"only_protected_branches": True},
        {"auth_method": "password"},
        {"auth_method": "ssh_public_key", "url": f"ssh://git@{HOST}/app.git"},
    ],
)
async def test_what_a_mirror_is_made_with(mirrors: Mirrors, value: dict[str, Any]) -> None:
    _, made = await mirrors.made(**value)
    assert made | {name: wanted for name, wanted in value.items() if name != "url"} == made


@says(
    "mirrors",
    "`mirror_branch_regex` string (regular expression; requires `only_protected_branches` disabled; Premium and"
    " Ultimate only);",
    "`mirror_branch_regex` (not usable with `only_protected_branches` enabled; Premium and Ultimate only),",
)
async def test_branches_by_an_expression(mirrors: Mirrors, shared_forge: SharedForges) -> None:
    wanted = {"mirror_branch_regex": "release/.*"}
    one, _ = await mirrors.made(**wanted)
    both = wanted | {"only_protected_branches": True}
    for answer in (await mirrors.create(**both), await mirrors.owner.api.put(one, both)):
        assert answer.status == 400, answer
    free = await shared_forge(tier="free")
    url = f"/projects/{(await free.project())['id']}/remote_mirrors"
    refused = await free.root.post(url, {"url": "https://192.0.2.1/a.git"} | wanted)
    assert (refused.status, "not available on the free tier" in refused.body["message"]) == (403, True)


@says(
    "mirrors",
    "| any | PUT update with `enabled` | `enabled` toggled | |",
    "`mirror_id` integer required; `enabled`, `keep_divergent_refs`, `only_protected_branches`,",
    "`auth_method` optional | Remote mirror |",
)
async def test_a_mirror_is_changed(mirrors: Mirrors) -> None:
    one, made = await mirrors.made()
    for enabled in (True, False):
        changed = await mirrors.owner.api.put(one, {"enabled": enabled})
        assert (changed.status, changed.body) == (200, made | {"enabled": enabled})
    for value in (
        {"keep_divergent_refs": True},
        {"only_protected_branches": True},
        {"auth_method": "password"},
    ):
        changed = await mirrors.owner.api.put(one, value)
        assert (changed.status, changed.body | value) == (200, changed.body)
    missing = await mirrors.owner.api.put(f"{mirrors.url}/999999", {"enabled": True})
    assert missing.status == 404


@says(
    "mirrors",
    "| 24 | DELETE `/projects/:id/remote_mirrors/:mirror_id` | `mirror_id` integer required |",
)
async def test_a_mirror_is_deleted(mirrors: Mirrors) -> None:
    one, _ = await mirrors.made()
    gone = await mirrors.owner.api.delete(one)
    assert (gone.status, gone.body) == (204, "")
    assert (await mirrors.owner.api.get(one)).status == 404
    assert (await mirrors.owner.api.delete(one)).status == 404


@says(
    "mirrors",
    "Pull mirrors are configured elsewhere.",
    "Creating a pull mirror is done through the projects API;",
)
async def test_pull_mirrors_are_not_here(mirrors: Mirrors) -> None:
    """The projects API refuses their parameters, so that nobody believes that one runs."""
    project = mirrors.url.removesuffix("/remote_mirrors")
    refused = await mirrors.owner.api.put(project, {"import_url": f"https://{HOST}/a.git", "mirror": True})
    assert refused.status == 400
    assert "mirror is not supported by this service" in refused.body["error"]
