"""Lists stay cheap with very much data: no list reads a whole table to show one page of the caller's entities."""

import datetime
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from api_server.accounts import user_queries
from api_server.ci.runners import queries
from api_server.merge_requests import list_queries
from api_server.merge_requests.list_handlers import ListOfAll, filters_of
from api_server.namespaces import member_queries, namespace_queries, project_queries
from api_server.state.database import Database, Executor
from api_server.state.listing import Page
from tests.support.plans import loaded

LOAD = (Path(__file__).parents[1] / "support/many_rows.sql").read_text()


@pytest.fixture(scope="module")
async def many(new_database: Callable[[], str]) -> AsyncIterator[Database]:
    async with loaded(new_database(), LOAD, users=2_000, projects=20_000) as database:
        yield database


class Explaining(Executor):
    """Returns plans instead of rows."""

    def __init__(self, inner: Database) -> None:
        self.inner = inner
        self.plan = ""

    @property
    def now(self) -> datetime.datetime:
        return self.inner.now

    async def _execute(self, statement: str, parameters: dict[str, Any]) -> Any:
        explained = await self.inner.rows(f"EXPLAIN (ANALYZE, TIMING OFF) {statement}", **parameters)
        self.plan += "\n".join(line[0] for line in explained)
        return await self.inner._execute(statement, parameters)


ALL: dict[str, Any] = {"visibility": None, "archived": None, "search": None}
Read = Callable[[Executor, int, int], Awaitable[Any]]


def readable(page: Page, scope: Any, *, of_group: bool = False) -> Read:
    """A list of merge requests."""

    def read(executor: Executor, her: int, group: int) -> Awaitable[Any]:
        return list_queries.list_readable(
            executor,
            page,
            viewer_id=her,
            sees_all=False,
            non_archived=of_group,
            filters=filters_of(ListOfAll(scope=scope), her),
            group_id=group if of_group else None,
        )

    return read


def users_with(**filters: Any) -> Read:
    values = {"search": None, "bots": None, **filters}
    return lambda d, _, __: user_queries.list_users(d, Page(), for_administrator=True, **values)


CHEAP: dict[str, tuple[str, Read]] = {
    "her projects": (
        "projects",
        lambda d, her, _: project_queries.list_projects(
            d, Page(), viewer_id=her, sees_all=False, min_level=10, **ALL
        ),
    ),
    "private projects": (
        "projects",
        lambda d, her, _: project_queries.list_projects(
            d, Page(), viewer_id=her, sees_all=False, **ALL | {"visibility": "private"}
        ),
    ),
    "a group's projects": (
        "projects",
        lambda d, her, group: project_queries.list_projects(
            d, Page(), viewer_id=her, sees_all=False, group_id=group, **ALL
        ),
    ),
    "projects by keyset": (
        "projects",
        lambda d, her, _: project_queries.list_projects(
            d, Page(after=10_000, counted=False), viewer_id=her, sees_all=False, **ALL
        ),
    ),
    "her groups": (
        "namespaces",
        lambda d, her, _: namespace_queries.list_groups(
            d,
            Page(),
            user_id=her,
            admin=False,
            min_level=30,
            parent_id=None,
            ancestor_id=None,
            top_level_only=False,
            skipped=[],
            search=None,
        ),
    ),
    "her namespaces": (
        "namespaces",
        lambda d, her, _: namespace_queries.list_namespaces(d, Page(), user_id=her, admin=False, search=None),
    ),
    "projects below a group": (
        "projects",
        lambda d, her, group: project_queries.list_projects(
            d, Page(), viewer_id=her, sees_all=False, group_id=group, below="with_subgroups", **ALL
        ),
    ),
    "runners that she looks after": (
        "runners",
        lambda d, her, _: queries.list_runners(
            d, Page(), "owner_id", her, runner_type=None, active=None, status=None, tags=None
        ),
    ),
    "her merge requests": ("merge_requests", readable(Page(), "created_by_me")),
    "merge requests that she reviews": ("merge_requests", readable(Page(), "reviews_for_me")),
    "all merge requests that she may read": ("merge_requests", readable(Page(counted=False), "all")),
    "those that have changed last": (
        "merge_requests",
        readable(Page(order="updated_at", counted=False), "all"),
    ),
    "merge requests below a group": ("merge_requests", readable(Page(), "all", of_group=True)),
    "a project's members": (
        "users",
        lambda d, _, __: member_queries.list_members(
            d,
            Page(descending=False),
            project_id=5,
            namespace_ids=[],
            query=None,
            finds_private=False,
            user_ids=None,
        ),
    ),
    "users by a part of their names": ("users", users_with(search="NY-177")),
    "projects by a part of their names": (
        "projects",
        lambda d, her, _: project_queries.list_projects(
            d, Page(), viewer_id=her, sees_all=True, **ALL | {"search": "ECT-1777"}
        ),
    ),
    "namespaces by a part of their names": (
        "namespaces",
        lambda d, her, _: namespace_queries.list_namespaces(
            d, Page(), user_id=her, admin=True, search="group-177"
        ),
    ),
    "members by a part of their names": (
        "users",
        lambda d, _, group: member_queries.list_members(
            d,
            Page(descending=False),
            project_id=None,
            namespace_ids=[group],
            query="ny-177",
            finds_private=False,
            user_ids=None,
        ),
    ),
}


async def test_the_index_is_asked_for_the_beginning_of_a_long_text_only(many: Database) -> None:
    explaining = Explaining(many)
    values: dict[str, Any] = {"for_administrator": True, "username": None, "active": False, "blocked": False}
    long = "many-1777" + "".join(map(chr, range(0x4E00, 0x4E00 + 5_000)))
    assert (await user_queries.list_users(explaining, Page(), **values, bots=None, search=long)).body == "[]"
    asked_for = re.findall(r"@> '{([^}]*)}'", explaining.plan)
    assert {len(texts.split(",")) for texts in asked_for} == {62}


@pytest.mark.parametrize("name", CHEAP)
async def test_a_page_of_what_is_hers_reads_no_whole_table(many: Database, name: str) -> None:
    table, read = CHEAP[name]
    her = await many.value("SELECT id FROM users WHERE username = 'many-777'")
    group = await many.value("SELECT id FROM namespaces WHERE path = 'many-group-1'")
    explaining = Explaining(many)
    listed = await read(explaining, her, group)
    assert listed.body != "[]"
    assert f"Seq Scan on {table}" not in explaining.plan, explaining.plan
    assert "is_visible" not in explaining.plan, "called for each row, where it could be inlined"


@pytest.mark.parametrize(
    ("filters", "index"),
    [
        ({"admins": True}, "users_admins"),
        ({"external": True}, "users_external"),
        ({"exclude_active": True}, "users_blocked"),
        ({"created_before": datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC)}, "users_created"),
    ],
)
async def test_a_filter_that_few_users_pass_reads_its_index(
    many: Database, filters: dict[str, Any], index: str
) -> None:
    explaining = Explaining(many)
    await users_with(**filters)(explaining, 0, 0)
    assert f"using {index} on users" in explaining.plan, explaining.plan
