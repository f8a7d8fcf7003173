"""Parameters of GitLab that this service does not use are reported, or refused (decision D11)."""

import asyncio
import io
import json
import typing
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, get_args

import aiohttp
import attrs
import pytest

from api_server.settings import Tier
from api_server.state import database
from api_server.state.driver import listening_connection
from api_server.web.context import RIGHTS_CHANNEL, SERVICES
from api_server.web.pagination import Paginated
from api_server.web.params import public_name
from api_server.web.routes import ById, Route
from api_server.web.unsupported import HEADER, ignored_parameters
from tests.support.deviations import Deviations
from tests.support.forge import Answer, Forge, SharedForges, new_name, running_forge
from tests.support.route_table import ROUTES, example, in_parts, name_of, path_of, required

#: Stored and shown because of a decision, though nothing reads it.
KEPT_WITHOUT_EFFECT = {"allow_local_requests_from_system_hooks"}
#: Lists and writing routes for which GitLab has no parameter that is unused here.
GITLAB_HAS_NO_MORE = {
    "GET /personal_access_tokens", "GET /groups/{id}/access_tokens", "GET /projects/{id}/access_tokens",
    "POST /groups/{id}/access_tokens", "POST /groups/{id}/access_tokens/self/rotate",
    "POST /groups/{id}/access_tokens/{token_id}/rotate", "POST /projects/{id}/access_tokens",
    "POST /projects/{id}/access_tokens/self/rotate", "POST /projects/{id}/access_tokens/{token_id}/rotate",
    "POST /user/personal_access_tokens",
    "GET /projects/{id}/merge_requests/{merge_request_iid}/diffs",
    "GET /projects/{id}/merge_requests/{merge_request_iid}/notes",
    "GET /projects/{id}/repository/commits/{sha}/diff",
    "POST /projects/{id}/merge_requests/{merge_request_iid}/discussions/{discussion_id}/notes",
    "PUT /projects/{id}/merge_requests/{merge_request_iid}/discussions/{discussion_id}",
    "PUT /projects/{id}/merge_requests/{merge_request_iid}/discussions/{discussion_id}/notes/{note_id}",
    "PUT /projects/{id}/merge_requests/{merge_request_iid}/rebase",
    "GET /projects/{id}/repository/commits/{sha}/merge_requests",
    "GET /projects/{id}/repository/commits/{sha}/refs", "POST /projects/{id}/repository/commits/{sha}/cherry_pick",
    "POST /projects/{id}/repository/commits/{sha}/revert", "POST /projects/{id}/protected_tags",
    "POST /projects/{id}/releases/{tag_name}/assets/links",
    "PUT /projects/{id}/releases/{tag_name}/assets/links/{link_id}",
    "GET /projects/{id}/pipeline_schedules", "POST /projects/{id}/pipeline_schedules",
    "PUT /projects/{id}/pipeline_schedules/{pipeline_schedule_id}", "POST /projects/{id}/pipeline",
    "POST /projects/{id}/pipeline_schedules/{pipeline_schedule_id}/variables",
    "PUT /projects/{id}/pipeline_schedules/{pipeline_schedule_id}/variables/{key}",
    "POST /projects/{id}/trigger/pipeline", "POST /projects/{id}/ref/{ref:.+}/trigger/pipeline",
    "PUT /projects/{id}/triggers/{trigger_id}", "POST /user/emails", "POST /users/{id}/emails",
    "DELETE /users/{id}", "POST /users/{user_id}/personal_access_tokens",
    "POST /personal_access_tokens/self/rotate", "POST /personal_access_tokens/{id}/rotate",
    "PUT /projects/{id}/transfer", "PATCH /projects/{id}/job_token_scope",
    "POST /projects/{id}/job_token_scope/allowlist", "POST /projects/{id}/job_token_scope/groups_allowlist",
    "GET /projects/{id}/users", "GET /users/{id}/memberships", "POST /projects/{id}/invitations",
    "POST /groups/{id}/invitations", "GET /projects/{id}/invitations", "GET /groups/{id}/invitations",
    "PUT /projects/{id}/invitations/{email}", "PUT /groups/{id}/invitations/{email}",
    "GET /projects/{id}/protected_branches", "POST /projects/{id}/repository/branches",
    "GET /projects/{id}/repository/tags", "POST /projects/{id}/repository/tags",
    "GET /projects/{id}/repository/tree", "GET /audit_events", "GET /groups/{id}/audit_events",
    "GET /projects/{id}/audit_events", "POST /projects/{id}/external_status_checks",
    "PUT /projects/{id}/external_status_checks/{check_id}",
    "POST /projects/{id}/merge_requests/{merge_request_iid}/status_check_responses",
    "GET /projects/{id}/external_status_checks/{check_id}/deliveries",
    "GET /projects/{id}/pipelines", "POST /projects/{id}/ci/lint", "POST /groups/{id}/variables",
    "POST /projects/{id}/variables", "PUT /groups/{id}/variables/{key}", "PUT /projects/{id}/variables/{key}",
    "DELETE /groups/{id}/variables/{key}", "DELETE /projects/{id}/variables/{key}",
    "POST /projects/{id}/cluster_agents", "GET /projects/{id}/jobs",
    "GET /projects/{id}/pipelines/{pipeline_id}/jobs", "GET /projects/{id}/pipelines/{pipeline_id}/bridges",
    "POST /projects/{id}/jobs/{job_id}/cancel", "POST /projects/{id}/jobs/{job_id}/play", "POST /runners",
    "POST /runners/verify", "DELETE /runners", "DELETE /runners/managers",
    "POST /runners/reset_authentication_token", "GET /runners/{id}/jobs", "PUT /runners/{id}",
    "POST /projects/{id}/runners", "POST /user/runners", "POST /jobs/request",
    "GET /projects/{id}/repository/commits/{sha}/statuses", "POST /projects/{id}/statuses/{sha}",
    "POST /admin/ci/variables", "PUT /admin/ci/variables/{key}", "PATCH /jobs/{id}/trace", "PUT /jobs/{id}",
    "POST /jobs/{id}/artifacts/authorize", "POST /jobs/{id}/artifacts", "POST /projects/{id}/remote_mirrors",
    "PUT /projects/{id}/remote_mirrors/{mirror_id}",
}  # fmt: skip


#: Values of no type, neither a text nor anything else.
_UNFIT = {"nothing": ["fits"]}
IGNORING = [route for route in ROUTES if route.ignores]


def test_what_a_route_uses_it_does_not_ignore() -> None:
    deviations = Deviations()
    for route in IGNORING:
        with deviations.of(name_of(route)):
            used = {public_name(field) for field in attrs.fields(route.parameters or ById)}
            ignored = {one.name: one for one in route.ignores}
            assert ignored
            assert used & ignored.keys() <= KEPT_WITHOUT_EFFECT
            assert all(example(field.type) is not None for field in ignored.values())
    assert not deviations, deviations.report


@in_parts(IGNORING, 3)
async def test_what_a_route_ignores_has_to_fit_and_is_refused_where_an_operator_wants_that(
    strict: Forge, routes: list[Route]
) -> None:
    deviations = Deviations()
    for route in routes:
        with deviations.of(name_of(route)):
            await _has_to_fit_and_is_refused(strict, route)
    assert not deviations, deviations.report


async def _has_to_fit_and_is_refused(strict: Forge, route: Any) -> None:
    fields = list(route.ignores)
    for start in range(0, len(fields), 20):  # the text of an error has a limit
        some = fields[start : start + 20]
        names = {public_name(field) for field in some if typing.get_origin(field.type) is not dict}
        unfit = dict.fromkeys(names - KEPT_WITHOUT_EFFECT, _UNFIT)
        if unfit:
            status, error = await _ask(strict, route, unfit)
            words = {text.partition(" ")[0]: text.partition(" ")[2] for text in error.split(", ")}
            assert (status, words.keys()) == (400, unfit.keys())
            assert set(words.values()) <= {"is invalid", "does not have a valid value"}
        fitting = {public_name(field): example(field.type) for field in some}
        refused = ", ".join(f"{name} is not supported by this service" for name in fitting)
        assert await _ask(strict, route, fitting) == (400, refused)


async def _ask(forge: Forge, route: Any, ignored: dict[str, Any]) -> tuple[int, str]:
    body = io.BytesIO(json.dumps(required(route) | ignored).encode())
    headers = {"Content-Type": "application/json"}
    answer = await forge.root.request(route.method, path_of(route, {}), data=body, headers=headers)
    return answer.status, str(answer.body["error"])


@pytest.fixture(scope="module")
async def strict(
    new_database: Callable[[], str], tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Forge]:
    folder = tmp_path_factory.mktemp("strict")
    async with running_forge(new_database(), folder, unsupported_parameters="refuse", work=False) as forge:
        yield forge


def test_what_is_ignored_is_of_routes_that_there_are() -> None:
    assert ignored_parameters().keys() <= set(map(name_of, ROUTES))


def test_every_route_says_what_it_ignores() -> None:
    """This applies to lists and writing routes, unless GitLab has no parameter that is unused here."""
    silent = {
        name_of(route)
        for route in ROUTES
        if not route.ignores
        and route.parameters is not None
        and (route.method != "GET" or issubclass(route.parameters, Paginated))
        and _asks_more_than_its_path(route)
    }
    assert silent == GITLAB_HAS_NO_MORE


def _asks_more_than_its_path(route: Any) -> bool:
    ours = {public_name(field) for field in attrs.fields(route.parameters)}
    return any(f"{{{name}" not in route.path for name in ours - {f.name for f in attrs.fields(Paginated)})


async def test_what_is_ignored_is_named_in_the_answer(forge: Forge) -> None:
    name = new_name("project")
    made = await forge.root.post(
        "/projects", json={"name": name, "approvals_before_merge": 6, "topics": ["a"]}
    )
    assert (made.status, made.headers[HEADER]) == (201, "approvals_before_merge, topics")
    url = f"/projects/{made.body['id']}"
    changed = await forge.root.put(url, json={"description": "x", "emails_disabled": True})
    assert (changed.status, changed.body["description"], changed.headers[HEADER]) == (
        200,
        "x",
        "emails_disabled",
    )
    listed = await forge.root.get("/projects?starred=true&search=" + name)
    assert (listed.status, len(listed.body), listed.headers[HEADER]) == (200, 1, "starred")
    assert HEADER not in (await forge.root.get("/projects")).headers


async def test_a_file_that_is_ignored_is_named_as_well(forge: Forge) -> None:
    form = aiohttp.FormData({"name": new_name("project")})
    form.add_field("avatar", b"...", filename="avatar.png", content_type="image/png")
    made = await forge.root.post("/projects", data=form)
    assert (made.status, made.headers[HEADER]) == (201, "avatar")
    url = f"/projects/{made.body['id']}"
    assert (await forge.root.put(url, json={"avatar": ""})).headers[HEADER] == "avatar"
    refused = await forge.root.put(url, json={"avatar": "avatar.png"})
    assert (refused.status, refused.body) == (400, {"error": "avatar is invalid"})


async def test_a_file_is_no_text(forge: Forge) -> None:
    form = aiohttp.FormData()
    form.add_field("name", b"x", filename="name.txt")
    refused = await forge.root.post("/projects", data=form)
    assert (refused.status, refused.body) == (400, {"error": "name is invalid"})


@pytest.mark.parametrize(
    ("sent", "error"),
    [
        ({"merge_method": "nonsense"}, "merge_method does not have a valid value"),
        ({"lfs_enabled": "?", "tag_list": {}}, "lfs_enabled is invalid, tag_list is invalid"),
        ({"import_url": "https://example.org/x.git"}, "import_url is not supported by this service"),
        ({"mirror": True, "wiki_enabled": False}, "mirror is not supported by this service"),
        ({"mirror": "false", "import_url": "x"}, "import_url is not supported by this service"),
    ],
)  # fmt: skip
async def test_what_gitlab_would_refuse_or_people_rely_on_is_refused(
    forge: Forge, sent: dict[str, Any], error: str
) -> None:
    name = new_name("project")
    refused = await forge.root.post("/projects", json={"name": name, **sent})
    assert (refused.status, refused.body) == (400, {"error": error})
    assert (await forge.root.get(f"/projects?search={name}")).body == []


async def test_what_is_refused_may_be_sent_to_say_that_it_is_not_wanted(forge: Forge) -> None:
    made = await forge.root.post("/projects", json={"name": new_name("project"), "mirror": False})
    assert (made.status, made.headers[HEADER]) == (201, "mirror")


async def test_an_operator_may_have_all_of_them_refused(strict: Forge) -> None:
    sent = {"name": "example", "path": "example", "lfs_enabled": True, "request_access_enabled": True}
    refused = await strict.root.post("/groups", json=sent)
    error = "request_access_enabled is not supported by this service"
    assert (refused.status, refused.body) == (
        400,
        {"error": f"lfs_enabled is not supported by this service, {error}"},
    )
    assert (await strict.root.post("/groups", json={"name": "example", "path": "example"})).status == 201


CUT = """
    SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
    WHERE datname = current_database() AND query = 'LISTEN rights_changed'
"""
END = f"SELECT pg_notify('{RIGHTS_CHANNEL}', 'end')"
#: Seconds for which values are cached in these tests, so that only notifications can remove them.
LONG = 300.0


@pytest.fixture
def long_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "REMEMBERED_FOR", LONG)


@pytest.fixture(scope="module")
async def quiet(
    new_database: Callable[[], str], tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Forge]:
    async with running_forge(new_database(), tmp_path_factory.mktemp("quiet"), work=False) as forge:
        yield forge


@pytest.mark.usefixtures("long_memory")
async def test_a_token_that_one_process_revokes_is_refused_by_the_other(
    new_forge: Any, new_database: Any, tmp_path: Path
) -> None:
    shared = {"database_url": new_database(), "data_dir": tmp_path, "work": False}
    async with new_forge(**shared) as one, new_forge(**shared) as other, asyncio.timeout(30):
        alice = await one.user("alice")
        there = attrs.evolve(alice.api, base=other.base)
        assert (await there.get("/user")).status == 200
        token = await one.database.value(
            "SELECT id FROM personal_access_tokens WHERE user_id = %(id)s", id=alice.id
        )
        assert (await one.root.delete(f"/personal_access_tokens/{token}")).status == 204
        while (await there.get("/user")).status == 200:
            await asyncio.sleep(0.01)
        assert (await there.get("/user")).status == 401


async def test_what_happened_while_nobody_listened_counts(quiet: Forge) -> None:
    async with asyncio.timeout(30):
        alice = await quiet.user("alice")
        assert (await alice.api.get("/user")).status == 200
        before = quiet.database.generation
        while not await quiet.database.value(CUT):
            await asyncio.sleep(0.01)
        while quiet.database.generation == before:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("change", "tells"),
    [
        ("UPDATE users SET state = 'blocked' WHERE id <> 1", True),
        ("UPDATE users SET last_activity_on = now()", False),
        ("UPDATE personal_access_tokens SET revoked = true WHERE user_id <> 1", True),
        ("UPDATE personal_access_tokens SET last_used_at = now()", False),
        ("UPDATE application_settings SET values = '{}'", True),
        ("UPDATE namespaces SET visibility = 'private'", True),
        ("UPDATE projects SET archived = NOT archived", True),
        ("UPDATE projects SET last_activity_at = now()", False),
        ("DELETE FROM members", True),
        ("DELETE FROM projects", True),
    ],
)
async def test_who_writes_does_not_matter_but_what(quiet: Forge, change: str, *, tells: bool) -> None:
    alice = await quiet.user("alice")
    assert (await alice.api.post("/projects", {"name": "app"})).status == 201
    url = quiet.server.app[SERVICES].settings.unpooled_url
    async with listening_connection(url, RIGHTS_CHANNEL) as connection:
        for statement in (change, END):
            async with quiet.database.transaction() as transaction:
                assert await transaction.run(statement)
        heard = [await asyncio.wait_for(connection.notification(), 20)]
        while heard[-1].payload != "end":
            heard.append(await asyncio.wait_for(connection.notification(), 20))
        assert (len(heard) > 1) == tells


TIERS: tuple[Tier, ...] = get_args(Tier)
RESERVED = [route for route in ROUTES if route.license]


@pytest.mark.parametrize("tier", TIERS)
async def test_features_answer_403_below_their_tier(shared_forge: SharedForges, tier: Tier) -> None:
    forge, deviations = await shared_forge(tier=tier), Deviations()
    for route in RESERVED:
        feature = route.license
        if feature is None or route.access.kind == "job":
            continue
        answer = await _call(forge, route)
        refused = {"message": f"403 Forbidden - {feature.name} is not available on the {tier} tier"}
        below = TIERS.index(tier) < TIERS.index(feature.tier)
        with deviations.of(name_of(route)):
            assert ((answer.status, answer.body) == (403, refused)) == below, answer
    assert not deviations, deviations.report


async def test_features_answer_403_where_they_do_not_exist(shared_forge: SharedForges) -> None:
    forge, deviations = await shared_forge(offering="saas"), Deviations()
    missing = [r for r in RESERVED if r.license and "saas" not in r.license.offerings]
    for route in missing:
        answer = await _call(forge, route)
        with deviations.of(name_of(route)):
            assert answer.status == 403
            assert "is not available on the saas offering" in answer.body["message"]
    assert not deviations, deviations.report
    assert {"/audit_events", "/audit_events/{id}"} <= {route.path for route in missing}


async def _call(forge: Forge, route: Route) -> Answer:
    """Send the route's request; it names nothing that exists, because the route works if the tier has the feature."""
    return await forge.root.request(route.method, path_of(route, {}, 999_999_999), json=required(route))
