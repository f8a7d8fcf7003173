"""Parameters that GitLab knows and this service has no use for are told, or refused (decision D11)."""

import contextlib
from collections.abc import Callable
from typing import Any

import attrs
import pytest

from api_server.web.params import public_name
from api_server.web.unsupported import HEADER
from tests.support.forge import Forge, new_name
from tests.support.route_table import ROUTES, example, name_of

NewForge = Callable[..., contextlib.AbstractAsyncContextManager[Forge]]


@pytest.mark.parametrize("route", [route for route in ROUTES if route.ignores is not None], ids=name_of)
def test_what_a_route_uses_it_does_not_ignore(route: Any) -> None:
    used = {public_name(field) for field in attrs.fields(route.parameters)}
    ignored = {public_name(field): field for field in attrs.fields(route.ignores)}
    assert ignored
    assert used & ignored.keys() == set()
    assert all(example(field.type) is not None for field in ignored.values())


async def test_what_is_ignored_is_named_in_the_answer(forge: Forge) -> None:
    name = new_name("project")
    made = await forge.root.post("/projects", json={"name": name, "build_timeout": 60, "topics": ["a"]})
    assert (made.status, made.headers[HEADER]) == (201, "build_timeout, topics")
    url = f"/projects/{made.body['id']}"
    changed = await forge.root.put(url, json={"description": "x", "emails_disabled": True})
    assert (changed.status, changed.body["description"], changed.headers[HEADER]) == (
        200,
        "x",
        "emails_disabled",
    )
    listed = await forge.root.get("/projects?simple=true&search=" + name)
    assert (listed.status, len(listed.body), listed.headers[HEADER]) == (200, 1, "simple")
    assert HEADER not in (await forge.root.get("/projects")).headers


@pytest.mark.parametrize(
    ("sent", "error"),
    [
        ({"merge_method": "nonsense"}, "merge_method does not have a valid value"),
        ({"issues_enabled": "perhaps", "build_timeout": "x"}, "issues_enabled is invalid, build_timeout is invalid"),
        ({"import_url": "https://example.org/x.git"}, "import_url is not supported by this service"),
        ({"mirror": True, "wiki_enabled": False}, "mirror is not supported by this service"),
    ],
)  # fmt: skip
async def test_what_gitlab_would_refuse_or_people_rely_on_is_refused(
    forge: Forge, sent: dict[str, Any], error: str
) -> None:
    name = new_name("project")
    refused = await forge.root.post("/projects", json={"name": name, **sent})
    assert (refused.status, refused.body) == (400, {"error": error})
    assert (await forge.root.get(f"/projects?search={name}")).body == []


async def test_an_operator_may_have_all_of_them_refused(new_forge: NewForge) -> None:
    async with new_forge(unsupported_parameters="refuse", work=False) as forge:
        sent = {"name": "example", "path": "example", "lfs_enabled": True, "request_access_enabled": True}
        refused = await forge.root.post("/groups", json=sent)
        error = "request_access_enabled is not supported by this service"
        assert (refused.status, refused.body) == (
            400,
            {"error": f"lfs_enabled is not supported by this service, {error}"},
        )
        assert (await forge.root.post("/groups", json={"name": "example", "path": "example"})).status == 201
