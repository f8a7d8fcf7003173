"""Written values are read afterwards: every parameter of every route that changes something."""

import contextlib
import re
from pathlib import Path
from typing import Any

import attrs
import pytest
import yaml

from api_server.web.params import public_name
from api_server.web.routes import Role, Route
from tests.support.deviations import Deviations
from tests.support.forge import Forge, new_name
from tests.support.furnished import furnish
from tests.support.route_table import ROUTES, name_of, path_of, required

#: Changes of state, and reports of runners, which are not settings.
ACTIONS = {
    "PUT /projects/{id}/transfer",
    "PUT /projects/{id}/repository/files/{path}",
    "PUT /projects/{id}/merge_requests/{merge_request_iid}/reset_approvals",
    "PUT /projects/{id}/merge_requests/{merge_request_iid}/merge",
    "PUT /projects/{id}/merge_requests/{merge_request_iid}/rebase",
    "PUT /jobs/{id}",
    "PATCH /jobs/{id}/trace",
}
#: Parameters that are never shown, and one that chooses the entity to change.
NOT_SHOWN = {"filter", "password", "shared_secret", "static_objects_external_storage_auth_token"}


_TABLE = Path(__file__).with_name("kept_settings.yml").read_text()
#: By route and parameter: the value that is sent, and where and how it is shown.
SAMPLES: dict[str, dict[str, Any]] = yaml.safe_load(re.sub("{new}", lambda _: new_name("kept"), _TABLE))
SETTINGS = [route for route in ROUTES if route.method in ("PUT", "PATCH") and name_of(route) not in ACTIONS]


def _parameters(route: Route) -> set[str]:
    declared = {public_name(field) for field in attrs.fields(route.parameters)} if route.parameters else set()
    return declared - set(re.findall(r"{(\w+)", route.path)) - NOT_SHOWN


def test_every_parameter_has_a_sample() -> None:
    assert {name_of(route): set(SAMPLES[name_of(route)]) for route in SETTINGS} == {
        name_of(route): _parameters(route) for route in SETTINGS
    }


@pytest.fixture(scope="module")
async def paths(forge: Forge) -> dict[str, str]:
    """Paths at which there is an entity of each kind."""
    furnished = await furnish(forge)
    user, member = await forge.user(), await forge.user()
    await forge.root.post(
        f"/projects/{furnished.ids['id']}/repository/branches", {"branch": "other", "ref": "main"}
    )
    places = {"projects": furnished.ids["id"], "groups": furnished.ids["group_id"]}
    for source, source_id in places.items():
        await forge.member(source, source_id, member, Role.DEVELOPER)
        invitation = {"email": "kept@example.net", "access_level": 30}
        await forge.root.post(f"/{source}/{source_id}/invitations", invitation)
    found = {}
    for route in SETTINGS:
        path = furnished.path_to(route)
        if route.path == "/users/{id}":
            path = f"/users/{user.id}"
        elif "/members/" in route.path or "/invitations/" in route.path:
            path = path_of(
                route,
                {"id": places[route.path.split("/")[1]], "user_id": member.id, "email": "kept@example.net"},
            )
        found[name_of(route)] = path
    return found


def _at(body: Any, key: str) -> Any:
    for name in key.split("."):
        body = body[int(name)] if isinstance(body, list) else body[name]
    return body


async def test_what_is_written_is_what_is_read(forge: Forge, paths: dict[str, str]) -> None:
    deviations = Deviations()
    for route in SETTINGS:
        is_of_all = route.path == "/application/settings"
        async with forge.instance_settings() if is_of_all else contextlib.nullcontext():
            for name, sample in SAMPLES[name_of(route)].items():
                told = sample if isinstance(sample, dict) else {"sent": sample}
                sent = {name: told["sent"]} | told.get("also", {})
                key, expected = told.get("key", name), told.get("value", told["sent"])
                needed = {} if name == "resolved" else required(route)
                path = paths[name_of(route)]
                answer = await forge.root.request(route.method, path, json=needed | sent)
                with deviations.of(f"{name_of(route)} {name}"):
                    assert answer.status in (200, 204), answer.body
                    read = await forge.root.get(path)
                    body = answer.body if read.status != 200 or isinstance(read.body, list) else read.body
                    value = _at(body, key)
                    assert value == expected or (key == "direct_asset_url" and expected in value)
    assert not deviations, deviations.report


#: Ignored parameters that are shown anyway have a fixed value here.
SO_HERE = {
    "emails_enabled": True,
    "lfs_enabled": True,
    "shared_runners_enabled": True,
    "group_runners_enabled": True,
    "shared_runners_setting": "enabled",
    "ci_separated_caches": True,  # of protected refs and of others
    "ci_forward_deployment_rollback_allowed": True,
    "ci_restrict_pipeline_cancellation_role": "developer",
    "keep_latest_artifact": True,
    "auto_devops_deploy_strategy": "continuous",  # without any deployment
    "repository_object_format": "sha1",
    "subgroup_creation_level": "owner",
    "default_branch_protection": 2,
    "default_branch_protection_defaults": {
        "allowed_to_push": [{"access_level": 40}],
        "allow_force_push": False,
        "allowed_to_merge": [{"access_level": 40}],
        "developer_can_initial_push": False,
    },
    "organization_id": 1,
    "theme_id": 1,
    "color_scheme_id": 1,
}
#: Parameters that have the same meaning as a stored one.
FOLLOWS = {
    "merge_requests_access_level",
    "merge_requests_enabled",
    "releases_access_level",
    "commit_email",
    "allow_local_requests_from_system_hooks",
}
NOTHING = (None, False, 0, "", [], "disabled")


async def test_what_is_ignored_is_not_shown_as_if_it_were_so(forge: Forge, paths: dict[str, str]) -> None:
    deviations = Deviations()
    for route in SETTINGS:
        if not route.ignores:
            continue
        shown = (await forge.root.get(paths[name_of(route)])).body
        for name in (one.name for one in route.ignores):
            if name in shown and name not in FOLLOWS:
                with deviations.of(f"{name_of(route)} {name}"):
                    assert shown[name] in NOTHING or shown[name] == SO_HERE[name]
    assert not deviations, deviations.report
