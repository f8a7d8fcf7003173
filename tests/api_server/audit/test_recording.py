"""Every change writes its declared events, dated by the application's clock; events cannot be changed afterwards
(D7)."""

import ast
import asyncio
import contextlib
import datetime
import inspect
import json
import os
import re
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import orjson
import psycopg2
import pytest

import api_server
from api_server.audit import chain, queries
from api_server.pages.site import PAGES
from api_server.state import audit_trail
from api_server.state.audit_event_types import EVENT_TYPES
from api_server.state.audit_trail import INSTANCE, SYSTEM, Entity
from api_server.state.database import Database
from api_server.state.listing import Page
from tests.api_server.audit import deeds  # noqa: F401 - it adds its deeds to DEEDS
from tests.api_server.audit.conftest import GROUP, record_events
from tests.api_server.audit.deeds import DEEDS, Deed
from tests.api_server.audit.things import CHANGES, Change, Things, shape
from tests.support.clock import MovedClock
from tests.support.forge import Forge, running_forge
from tests.support.route_table import ROUTES, name_of


@pytest.mark.parametrize(
    ("event_type", "entity", "values", "problem"),
    [
        (
            "group_exploded",
            GROUP,
            {},
            "group_exploded is no type of audit event; add it to audit_event_types.py",
        ),
        ("group_created", INSTANCE, {}, "does not belong to a Service::Audit::InstanceScope"),
        ("group_created", GROUP, {"color": "red"}, "has no details color"),
        ("group_name_updated", GROUP, {"change": "name", "to": "x"}, "has no value for from"),
    ],
)
async def test_only_declared_events_are_recorded(
    database: Database, event_type: str, entity: Entity, values: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ValueError, match=problem.replace("(", ".")):
        async with database.transaction() as transaction:
            await audit_trail.record(transaction, event_type, SYSTEM, entity, **values)


def test_every_type_says_what_it_belongs_to_and_is_about() -> None:
    for name, declared in EVENT_TYPES.items():
        assert name == name.lower()
        assert declared.scopes
        assert declared.target
        assert all(declared.messages)


async def test_details_are_texts_and_long_ones_are_cut(database: Database) -> None:
    async with database.transaction() as transaction:
        await audit_trail.record(
            transaction,
            "project_archived",
            SYSTEM,
            Entity("Project", 1, "p" * 9000).target(1, "d" * 9000),
            change="archived",
            **{"from": False, "to": None},
        )
    row = await database.row("SELECT details, entity_path, target_details FROM audit_events")
    assert json.loads(row.details) == {
        "custom_message": "Changed archived from false to nothing",
        "change": "archived",
        "from": "false",
        "to": "",
    }
    assert (len(row.entity_path), len(row.target_details)) == (5500, 5500)


async def test_an_event_of_a_change_that_is_undone_is_undone(database: Database) -> None:
    await record_events(database, "kept")
    await record_events(database, "undone", fails=True)
    assert await database.value("SELECT count(*) FROM audit_events") == 1
    verdict = await chain.verify(database)
    assert (verdict.head.position, verdict.problem) == (1, None)


@pytest.mark.parametrize("table", ["audit_events", "audit_chain"])
@pytest.mark.parametrize("statement", ["DELETE FROM {}", "UPDATE {} SET created_at = now()", "TRUNCATE {}"])
async def test_the_database_refuses_to_change_events(database: Database, table: str, statement: str) -> None:
    await record_events(database, "event")
    with pytest.raises(psycopg2.errors.InsufficientPrivilege, match="audit events are only ever added"):
        async with database.transaction() as transaction:
            await transaction.run(statement.format(table))


async def test_a_partition_cannot_be_emptied_by_its_own_name(database: Database) -> None:
    await record_events(database, "event")
    name = await database.value("SELECT tableoid::regclass::text FROM audit_events")
    for statement in (f"TRUNCATE {name}", f"DELETE FROM {name}"):
        with pytest.raises(psycopg2.errors.InsufficientPrivilege):
            async with database.transaction() as transaction:
                await transaction.run(statement)


# --- moments --------------------------------------------------------------------------------------------------------


async def _moments(database: Database) -> dict[str, datetime.datetime]:
    """Return the moments of all events in the order of their ids, by the details of their targets."""
    rows = await database.rows("SELECT target_details, created_at FROM audit_events ORDER BY id")
    return {row.target_details: row.created_at for row in rows}


async def test_the_applications_clock_dates_events(clocked: tuple[Database, MovedClock]) -> None:
    """Events have milliseconds, as they are shown; the clock is moved ahead, back by years, and ahead again."""
    database, clock = clocked
    expected = {}
    for name, moved in (
        ("first", {}),
        ("ahead", {"days": 400}),
        ("back", {"days": -4000}),
        ("on", {"days": 1}),
    ):
        clock.move(**moved, microseconds=1900)
        await record_events(database, name)
        expected[name] = clock.now.replace(microsecond=clock.now.microsecond // 1000 * 1000)
    assert await _moments(database) == expected
    assert (await chain.verify(database)).problem is None


async def test_who_began_first_and_ends_last_is_the_newest(clocked: tuple[Database, MovedClock]) -> None:
    """A reader who has read up to the newest event finds every later one after it, by id and by moment."""
    database, clock = clocked
    async with database.transaction() as slow:
        clock.move(seconds=30)
        await record_events(database, "quick")
        await audit_trail.record(slow, "group_created", SYSTEM, GROUP.target(1, "slow"))
    assert list(await _moments(database)) == ["quick", "slow"]
    assert set((await _moments(database)).values()) == {clock.now}
    await record_events(database, "later")
    listed = await queries.list_events(database, Page(counted=False), {})
    assert [event["details"]["target_details"] for event in json.loads(listed.body)] == [
        "later",
        "slow",
        "quick",
    ]


async def test_ids_and_moments_ascend_together(clocked: tuple[Database, MovedClock]) -> None:
    """This applies also to transactions that begin one after the other and end at the same time."""
    database, clock = clocked
    all_have_begun = asyncio.Barrier(8)

    async def write(name: str) -> None:
        async with database.transaction() as transaction:
            clock.move(seconds=1)
            await all_have_begun.wait()
            for part in "ab":
                await audit_trail.record(
                    transaction, "group_created", SYSTEM, GROUP.target(1, f"{name}{part}")
                )

    for round_number in range(5):
        await asyncio.gather(*(write(f"{round_number}.{number}") for number in range(8)))
    moments = list((await _moments(database)).values())
    assert len(moments) == 80
    assert moments == sorted(moments)
    chained = await database.rows("SELECT event_id FROM audit_chain ORDER BY position")
    assert [row.event_id for row in chained] == sorted(row.event_id for row in chained)


async def test_a_clock_that_was_set_back_far_counts_as_it_is(clocked: tuple[Database, MovedClock]) -> None:
    database, clock = clocked
    start = clock.now
    for name, back in (("first", 0), ("an hour", 60), ("more", 61)):
        clock.now = start - datetime.timedelta(minutes=back)
        await record_events(database, name)
    assert await _moments(database) == {
        "first": start,
        "an hour": start,
        "more": start - datetime.timedelta(minutes=61),
    }


#: Routes that write no event, and why.
SILENT = {
    "POST /projects/{id}/ci/lint": "reads only",
    "POST /projects/{id}/repository/branches": "git's own history tells who made what, and pushes are not audited",
    "DELETE /projects/{id}/repository/branches/{name}": "as above",
    "POST /projects/{id}/repository/commits": "the commit names its author",
    "POST /projects/{id}/repository/commits/{sha}/cherry_pick": "as above",
    "POST /projects/{id}/repository/commits/{sha}/revert": "as above",
    "POST /projects/{id}/repository/tags": "as above",
    "POST /projects/{id}/repository/files/{path}": "the commit names its author",
    "PUT /projects/{id}/repository/files/{path}": "the commit names its author",
    "DELETE /projects/{id}/repository/files/{path}": "the commit names its author",
    "POST /projects/{id}/merge_requests": "daily work, told by the merge request itself",
    "PUT /projects/{id}/merge_requests/{merge_request_iid}": "as above",
    "PUT /projects/{id}/merge_requests/{merge_request_iid}/merge": "as above; the merge commit names who merged",
    "POST /projects/{id}/merge_requests/{merge_request_iid}/cancel_merge_when_pipeline_succeeds": "as above",
    "PUT /projects/{id}/merge_requests/{merge_request_iid}/rebase": "as above; the commits name their committer",
    "POST /projects/{id}/merge_requests/{merge_request_iid}/approve": "as above",
    "POST /projects/{id}/merge_requests/{merge_request_iid}/unapprove": "as above",
    "PUT /projects/{id}/merge_requests/{merge_request_iid}/reset_approvals": "as above",
    "POST /projects/{id}/merge_requests/{merge_request_iid}/notes": "as above",
    "PUT /projects/{id}/merge_requests/{merge_request_iid}/notes/{note_id}": "as above",
    "DELETE /projects/{id}/merge_requests/{merge_request_iid}/notes/{note_id}": "as above",
    "POST /projects/{id}/merge_requests/{merge_request_iid}/discussions": "as above",
    "PUT /projects/{id}/merge_requests/{merge_request_iid}/discussions/{discussion_id}": "as above",
    "POST /projects/{id}/merge_requests/{merge_request_iid}/discussions/{discussion_id}/notes": "as above",
    "PUT /projects/{id}/merge_requests/{merge_request_iid}/discussions/{discussion_id}/notes/{note_id}": "as above",
    "DELETE /projects/{id}/merge_requests/{merge_request_iid}/discussions/{discussion_id}/notes/{note_id}": (
        "as above"
    ),
    "POST /projects/{id}/merge_requests/{merge_request_iid}/status_checks/{external_status_check_id}/retry": (
        "the answer stays as it is; the check's own history tells that it was asked again"
    ),
    "POST /projects/{id}/releases/{tag_name}/assets/links": "what a release has for download; it shows it",
    "PUT /projects/{id}/releases/{tag_name}/assets/links/{link_id}": "as above",
    "DELETE /projects/{id}/releases/{tag_name}/assets/links/{link_id}": "as above",
    "POST /projects/{id}/pipeline": "daily work, told by the pipeline itself",
    "POST /projects/{id}/merge_requests/{merge_request_iid}/pipelines": "as above",
    "POST /projects/{id}/pipeline_schedules/{pipeline_schedule_id}/play": "as above",
    "POST /projects/{id}/trigger/pipeline": "as above",
    "POST /projects/{id}/ref/{ref:.+}/trigger/pipeline": "as above",
    "POST /projects/{id}/pipelines/{pipeline_id}/cancel": "as above",
    "POST /projects/{id}/pipelines/{pipeline_id}/retry": "as above",
    "POST /projects/{id}/statuses/{sha}": "daily work, told by the status itself",
    "POST /projects/{id}/jobs/{job_id}/cancel": "daily work, told by the job itself",
    "POST /projects/{id}/jobs/{job_id}/retry": "as above",
    "POST /projects/{id}/jobs/{job_id}/play": "as above",
    "POST /projects/{id}/jobs/{job_id}/artifacts/keep": "as above",
    "POST /projects/{id}/remote_mirrors/{mirror_id}/sync": "the mirror tells when it was updated; failures are audited",
    "POST /runners/verify": "changes nothing that lasts",
    "DELETE /runners/managers": "a machine of a runner signs off; the runner stays",
    "POST /jobs/request": "runners at work; the job tells",
    "PUT /jobs/{id}": "as above",
    "PATCH /jobs/{id}/trace": "as above",
    "POST /jobs/{id}/artifacts": "as above",
    "POST /jobs/{id}/artifacts/authorize": "changes nothing",
    "POST /admin/mirrors/{mirror_id}/sync": "as the API's: the mirror tells when it was updated",
    "POST /admin/background_tasks/{id}/retry": "work that was wanted already; the log tells",
    "POST /admin/background_tasks/{id}/cancel": "as above",
    "POST /admin/edges/purge": "copies only: edges ask again",
    "POST /admin/audit_events/verify": "reads only",
    "POST /admin/application_settings/repository/check": "as above, and purges copies",
    "POST /-/sign_out": "ends what signing in has told of",
    "POST /-/user_settings/active_sessions/{id}/end": "as above",
    "POST /-/user_settings/active_sessions/end_others": "as above",
    "POST /{path}.git/git-upload-pack": "reads only",
    "POST /{path}.git/git-receive-pack": "git's own history tells",
    "POST /{path}.git/info/lfs/objects/batch": "changes nothing",
    "PUT /{path}.git/info/lfs/objects/{oid}/{size}": "an object without a name; the commit that names it tells",
    "POST /{path}.git/info/lfs/verify": "changes nothing",
    "* /{path}/info/{rest}": "redirects to the address with .git",
    "* /{path}.git/info/lfs/locks{rest}": "refused, whatever it is",
}
#: One route for all pages below projects, which declare themselves.
BELOW_PROJECTS = "POST /{project}/-/{below}"
EVENTS = """
    SELECT event_type, author_id, ip_address, details, audit_events::text AS text,
        format('%%s: %%s %%s in %%s %%s about %%s %%s %%s from %%s: %%s', event_type, author_id, author_name,
            entity_type, entity_path, target_type, target_id, target_details, ip_address, details) AS line
    FROM audit_events WHERE id > %(after)s ORDER BY id
"""
IN_BRACES = re.compile(r"{\w+}")
NEWEST = "SELECT coalesce(max(id), 0) FROM audit_events"


@pytest.fixture(scope="module")
async def quiet_forge(
    database_of_module: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Forge]:
    """A server without background work, so that only the test's requests write events. Changes of the instance stay."""
    async with running_forge(database_of_module, tmp_path_factory.mktemp("quiet"), work=False) as forge:
        yield forge


async def _events(forge: Forge, change: Change | Deed) -> list[Any]:
    """Return the events that the change has written, after checks that apply to all events."""
    making = change.made(Things(forge))
    await anext(making)
    before = await forge.database.value(NEWEST)
    async for _ in making:
        pass
    rows = await forge.database.rows(EVENTS, after=before)
    assert tuple(sorted(row.event_type for row in rows)) == change.events
    for row in rows:
        details = orjson.loads(row.details)
        assert any(
            re.fullmatch(".*".join(map(re.escape, IN_BRACES.split(message))), details["custom_message"])
            for message in EVENT_TYPES[row.event_type].messages
        ), row
        # Go clients decode details into structs of strings.
        assert all(isinstance(value, str) for value in details.values()), row
        assert not any(secret in row.text for secret in SECRETS), row
    _compare(str(change), [f"{change} -> {VARYING.sub('#', row.line)}" for row in rows])
    return rows


#: The events of all changes, a line for each. After an intended change, `FREEZE=1 scripts/test -n 0
#: tests/api_server/audit/test_recording.py` writes the file again.
FROZEN = Path(__file__).parents[1] / "frozen" / "audit_events.txt"
#: Digests, thumbprints of keys and numbers differ from run to run.
VARYING = re.compile(r"(?<![\w-])(?=[\w-]*[A-Z])[\w-]{43}(?![\w-])|[0-9a-f]{32,}|[0-9]+")


def _compare(change: str, lines: list[str]) -> None:
    frozen, beginning = FROZEN.read_text().splitlines(), f"{change} -> "
    if os.environ.get("FREEZE"):
        others = [line for line in frozen if not line.startswith(beginning)]
        FROZEN.write_text("".join(f"{line}\n" for line in sorted([*others, *lines])))
    else:
        assert [line for line in frozen if line.startswith(beginning)] == sorted(lines)


#: Prefixes of tokens, and secret values that the table's changes set.
SECRETS = (
    "flpat-",
    "flso-",
    "glrt-",
    "flinv-",
    "flcon-",
    "flsin-",
    "flpwd-",
    "user:secret",
    "even longer",
    "hidden",
    '"one"',
    '"two"',
)


@pytest.mark.parametrize("change", CHANGES, ids=str)
async def test_a_request_writes_exactly_its_events(quiet_forge: Forge, change: Change) -> None:
    """Events are the caller's, from her address; the system records what has expired meanwhile."""
    rows = await _events(quiet_forge, change)
    if change.by != "anonymous":
        assert {row.ip_address for row in rows} <= {"127.0.0.1", None}
        assert len({row.author_id for row in rows if row.ip_address}) == (1 if rows else 0)


@pytest.mark.parametrize("deed", DEEDS, ids=str)
async def test_a_deed_writes_exactly_its_events(quiet_forge: Forge, new_forge: Any, deed: Deed) -> None:
    server = contextlib.nullcontext(quiet_forge) if deed.settings is None else new_forge(**deed.settings)
    async with server as forge:
        await _events(forge, deed)


def test_every_declared_type_is_written_by_a_change() -> None:
    written = {event for change in [*CHANGES, *DEEDS] for event in change.events}
    assert written == set(EVENT_TYPES), "enter the change in changes.yml, or in DEEDS of deeds.py"


async def test_every_route_that_writes_is_in_the_table_or_says_why_not(quiet_forge: Forge) -> None:
    pages = {
        f"{route.method} {route.resource.canonical}"
        for route in quiet_forge.server.app.router.routes()
        if route.method not in ("GET", "HEAD") and route.resource is not None
    }
    of_the_api = {
        shape(f"POST {route.path}")
        for of_module in PAGES
        for route in of_module.routes
        if not (route.path.startswith("/admin/") or _writes(route.handler))
    }
    assert "POST /{}/-/edit/archive" in of_the_api
    routes = {name_of(route) for route in ROUTES if route.method != "GET"} | {
        page
        for page in pages
        if "/api/v4" not in page and page != BELOW_PROJECTS and shape(page) not in of_the_api
    }
    assert set(SILENT) <= routes
    loud = {shape(change.request) for change in CHANGES if change.events} | {
        shape(deed.what) for deed in DEEDS
    }
    assert not {shape(route) for route in SILENT} & loud
    assert {route for route in routes if shape(route) not in loud} == set(SILENT)


def _writes(form: Any) -> bool:
    """Return whether the module of a form's handler writes events itself. Other forms use the API, whose routes are in
    the table."""
    source = inspect.getsource(sys.modules[inspect.unwrap(form).__module__])
    return ".transaction(" in source or "audit_trail" in source


def _calls() -> Iterator[tuple[str, ast.Call]]:
    root = Path(api_server.__file__).parent
    for file in sorted(root.rglob("*.py")):
        if "audit_trail.record" not in (text := file.read_text()):
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "audit_trail.record":
                yield f"{file.relative_to(root)}:{node.lineno}", node


def _literal(node: ast.expr) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


@pytest.mark.parametrize("call", [pytest.param(call, id=place) for place, call in _calls()])
def test_a_recorded_event_is_declared_with_its_details(call: ast.Call) -> None:
    keywords = {keyword.arg for keyword in call.keywords if keyword.arg}
    event_type = _literal(call.args[1])
    if event_type is None:  # tests of composed names cover these
        return
    assert keywords - {"message"} <= EVENT_TYPES[event_type].takes
