"""The instance: its settings, who may change them, and its version."""

import asyncio
import ipaddress
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import gitlab
import pytest

from api_server.accounts import instance_settings
from api_server.outbound.client import OUTGOING_POLICY
from api_server.outbound.destinations import BlockedError, Destination
from api_server.settings import Settings
from api_server.web.context import SERVICES
from tests.support.forge import Forge, SharedForges

PATH = "/application/settings"
URL, TOKEN = "static_objects_external_storage_url", "static_objects_external_storage_auth_token"
NewForge = Callable[..., Any]


async def test_settings_have_defaults_and_the_operators_choice(shared_forge: SharedForges) -> None:
    forge = await shared_forge(allow_local_requests=True)
    async with forge.instance_settings():
        shown = await forge.root.get(PATH, expect=200)
        assert shown.body == {
            "id": 1,
            "created_at": shown.body["created_at"],
            "updated_at": shown.body["updated_at"],
            URL: None,
            TOKEN: None,
            "allow_local_requests_from_web_hooks_and_services": True,
            "allow_local_requests_from_system_hooks": True,
            "deny_all_requests_except_allowed": False,
            "outbound_local_requests_whitelist": [],
            "default_projects_limit": 100000,
            "throttle_authenticated_api_enabled": False,
            "throttle_authenticated_api_requests_per_period": 7200,
            "throttle_authenticated_api_period_in_seconds": 3600,
        }
        await forge.root.put(PATH, {"allow_local_requests_from_web_hooks_and_services": False})
        await forge.root.put(PATH, {"outbound_local_requests_whitelist": "example.org, 192.0.2.0/24"})
        current = await instance_settings.current(forge.server.app[SERVICES])
        assert current.allow_local_requests_from_web_hooks_and_services is False
        assert current.outbound_local_requests_whitelist == ["example.org", "192.0.2.0/24"]


async def test_the_external_storage_needs_its_url_and_its_token_together(forge: Forge) -> None:
    async with forge.instance_settings():
        refused = await forge.root.put(PATH, {URL: "https://cdn.example.org"})
        assert (refused.status, refused.body) == (400, {"message": {TOKEN: ["can't be blank"]}})
        both = await forge.root.put(PATH, {URL: "https://cdn.example.org", TOKEN: "hush-hush"})
        assert (both.status, both.body[URL], both.body[TOKEN]) == (
            200,
            "https://cdn.example.org",
            "hush-hush",
        )
        refused = await forge.root.put(PATH, {TOKEN: ""})
        assert (refused.status, refused.body) == (400, {"message": {TOKEN: ["can't be blank"]}})
        sent_back = await forge.root.put(PATH, both.body)
        assert sent_back.body == both.body | {"updated_at": sent_back.body["updated_at"]}
        current = await instance_settings.current(forge.server.app[SERVICES])
        assert current.static_objects_external_storage_auth_token == "hush-hush"
        off = await forge.root.put(PATH, {URL: "", TOKEN: None})
        assert (off.status, off.body[URL], off.body[TOKEN]) == (200, None, None)


async def test_the_token_is_in_no_event_and_in_no_table_in_clear(forge: Forge) -> None:
    newest = await forge.database.value("SELECT max(id) FROM audit_events")
    async with forge.instance_settings(**{URL: "https://cdn.example.org", TOKEN: "hush-hush"}):
        rows = await forge.database.rows("SELECT s::text AS row FROM application_settings s")
        assert "hush-hush" not in rows[0].row
        assert b"hush-hush".hex() not in rows[0].row
        rows = await forge.database.rows(
            "SELECT entity_type, target_details, details ->> 'custom_message' AS message, details::text AS all"
            " FROM audit_events WHERE event_type = 'application_setting_updated' AND id > %(id)s ORDER BY id",
            id=newest,
        )
        assert [(row.entity_type, row.target_details, row.message) for row in rows] == [
            (
                "Service::Audit::InstanceScope",
                URL,
                f"Changed {URL} from nothing to https://cdn.example.org",
            ),
            ("Service::Audit::InstanceScope", TOKEN, f"Changed {TOKEN}"),
        ]
        assert "hush-hush" not in str(rows)
        # the same settings again change nothing
        await forge.root.put(PATH, {URL: "https://cdn.example.org", TOKEN: "hush-hush"})
        count = await forge.database.value(
            "SELECT count(*) FROM audit_events WHERE event_type = 'application_setting_updated' AND id > %(id)s",
            id=newest,
        )
        assert count == 2


@pytest.mark.parametrize(
    ("wanted", "body"),
    [
        ({URL: "ftp://a"}, {"message": {URL: ["is blocked: Only allowed schemes are http, https"]}}),
        ({URL: "https://"}, {"message": {URL: ["must be a valid URL"]}}),
        ({URL: "https://a/?b"}, {"message": {URL: ["must be a valid URL"]}}),
        ({URL: "https://u:p@a/"}, {"message": {URL: ["must be a valid URL"]}}),
        ({URL: "https://a:99999/"}, {"message": {URL: ["must be a valid URL"]}}),
        ({URL: "https://[a/"}, {"message": {URL: ["must be a valid URL"]}}),
        ({URL: "https://a b/"}, {"message": {URL: ["must be a valid URL"]}}),
        (
            {URL: "https://a/" + "a" * 250},
            {"message": {URL: ["is too long (maximum is 255 characters)"]}},
        ),
        ({TOKEN: "a" * 256}, {"message": {TOKEN: ["is too long (maximum is 255 characters)"]}}),
        (
            {"default_projects_limit": -1},
            {"message": {"default_projects_limit": ["must be greater than or equal to 0"]}},
        ),
        ({"default_projects_limit": "x"}, {"error": "default_projects_limit is invalid"}),
        (
            {"throttle_authenticated_api_period_in_seconds": 0},
            {"message": {"throttle_authenticated_api_period_in_seconds": ["must be greater than 0"]}},
        ),
        (
            {"allow_local_requests_from_system_hooks": "x"},
            {"error": "allow_local_requests_from_system_hooks is invalid"},
        ),
        (
            {"outbound_local_requests_whitelist": ["a b"]},
            {
                "message": {
                    "outbound_local_requests_whitelist": [
                        "has an entry that cannot be used: a b is not an address, a network or a domain"
                        " with an optional port"
                    ]
                }
            },
        ),
    ],
)
async def test_settings_that_cannot_be_are_refused(forge: Forge, wanted: dict, body: dict) -> None:
    sent = {TOKEN: "hush-hush"} | wanted if URL in wanted else wanted
    answer = await forge.root.put(PATH, sent)
    assert (answer.status, answer.body) == (400, body)


async def test_where_all_is_denied_only_the_list_is_called(forge: Forge) -> None:
    listed = ["203.0.113.7"]
    async with forge.instance_settings(
        outbound_local_requests_whitelist=listed, deny_all_requests_except_allowed=True
    ):
        policy = await forge.server.app[SERVICES][OUTGOING_POLICY]()
        called, denied = (
            (Destination("http", host, 80), [ipaddress.ip_address(host)])
            for host in ("203.0.113.7", "203.0.113.8")
        )
        policy.check_addresses(*called)
        with pytest.raises(BlockedError):
            policy.check_addresses(*denied)


async def test_only_administrators_read_and_change_settings(forge: Forge) -> None:
    alice = await forge.user("alice")
    for method in ("GET", "PUT"):
        assert (await alice.api.request(method, PATH)).status == 403
        assert (await forge.anonymous.request(method, PATH)).status == 401


async def test_python_gitlab_reads_and_saves_settings(forge: Forge) -> None:
    async with forge.instance_settings():

        def use() -> None:
            with gitlab.Gitlab(forge.base, private_token=forge.root.token) as client:
                settings = client.settings.get()
                settings.default_projects_limit = 5
                settings.static_objects_external_storage_url = "https://cdn.example.org"
                settings.static_objects_external_storage_auth_token = "hush-hush"
                settings.save()
                assert client.settings.get().default_projects_limit == 5

        await asyncio.to_thread(use)


async def test_a_setting_that_nothing_reads_is_kept_and_named(forge: Forge) -> None:
    async with forge.instance_settings():
        sent = {"allow_local_requests_from_system_hooks": False, "default_projects_limit": 7}
        answer = await forge.root.put(PATH, sent, expect=200)
        assert {name: answer.body[name] for name in sent} == sent
        assert answer.headers["X-Ignored-Parameters"] == "allow_local_requests_from_system_hooks"


@pytest.mark.parametrize("path", ["/version", "/metadata"])
async def test_the_version_is_the_dialect_and_is_for_who_is_signed_in(forge: Forge, path: str) -> None:
    assert (await forge.anonymous.get(path)).status == 401
    shown = await forge.root.get(path, expect=200)
    assert shown.body == {
        "version": "17.11.0",
        "revision": f"forgelet {metadata.version('forgelet')}",
        "kas": {"enabled": False, "externalUrl": None, "externalK8sProxyUrl": None, "version": None},
        "enterprise": True,
    }


async def test_the_free_tier_is_no_enterprise(shared_forge: SharedForges) -> None:
    forge = await shared_forge(tier="free")
    assert (await forge.root.get("/version")).body["enterprise"] is False


@pytest.mark.parametrize(
    ("given", "shown"),
    [("17.11", "17.11.0"), ("18.0.2", "18.0.2"), ("16.9-ee", "16.9.0-ee"), ("18.5.1-pre", "18.5.1-pre")],
)
def test_the_version_has_three_numbers(tmp_path: Path, given: str, shown: str) -> None:
    """Scripts and clients split the version into numbers and compare them."""
    settings = Settings(database_url="postgresql:///", data_dir=tmp_path, gitlab_version=given)
    assert settings.dialect == shown


async def test_the_version_is_the_one_that_is_asked_for(new_forge: Callable[..., Any]) -> None:
    async with new_forge(gitlab_version="18.2") as forge:
        assert (await forge.root.get("/metadata")).body["version"] == "18.2.0"
