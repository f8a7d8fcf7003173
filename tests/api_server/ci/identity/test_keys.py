"""The keys of identity tokens: discovery, verification by others, and replacement of keys."""

import asyncio
import base64
import datetime
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jwt
import pytest

from api_server.ci.config.execution import MONTH
from api_server.ci.identity import claims, keys
from api_server.namespaces import projects
from api_server.state.audit_trail import SYSTEM
from api_server.web.context import SERVICES
from tests.api_server.ci.identity.verifying import Consumer
from tests.support import forge as forges
from tests.support.ci import CiProject, ci_project
from tests.support.forge import Forge, running_forge
from tests.support.runner import Runner, a_runner

FILE = "test: {script: x, id_tokens: {TOKEN: {aud: https://vault.example}}}"
CACHED = "public, max-age=900, must-revalidate, no-transform"


async def token_of(project: CiProject, runner: Runner) -> str:
    await project.pipeline(FILE)
    return (await runner.job()).variables["TOKEN"]


async def shown(forge: Forge) -> list[dict[str, str]]:
    answer = await forge.anonymous.get(f"{forge.base}/oauth/discovery/keys", expect=200)
    return list(answer.body["keys"])


def kid_of(token: str) -> str:
    return str(jwt.get_unverified_header(token)["kid"])


async def test_everybody_may_ask_who_issues_tokens(forge: Forge) -> None:
    for client in (forge.anonymous, forge.root):
        answer = await client.get(f"{forge.base}/.well-known/openid-configuration", expect=200)
        assert answer.body == {
            "issuer": forge.base,
            "jwks_uri": f"{forge.base}/oauth/discovery/keys",
            "response_types_supported": ["id_token"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": ["RS256"],
            "scopes_supported": ["openid"],
            "claims_supported": list(claims.NAMES),
        }
        assert answer.headers["Cache-Control"] == CACHED
        assert answer.headers["Access-Control-Allow-Origin"] == "*"


async def test_behind_a_path_the_issuer_has_that_path_and_no_slash(new_forge: Any) -> None:
    async with new_forge(external_url="https://example.org/code/") as forge:
        base = str(forge.server.make_url("")).rstrip("/")
        answer = await forge.anonymous.get(f"{base}/.well-known/openid-configuration", expect=200)
        assert answer.body["issuer"] == "https://example.org/code"
        assert answer.body["jwks_uri"] == "https://example.org/code/oauth/discovery/keys"


async def test_keys_are_public_ones_named_by_their_thumbprint(forge: Forge) -> None:
    answer = await forge.anonymous.get(f"{forge.base}/oauth/discovery/keys", expect=200)
    assert answer.headers["Cache-Control"] == CACHED
    assert answer.headers["Access-Control-Allow-Origin"] == "*"
    (key,) = answer.body["keys"]
    members = {name: key[name] for name in ("e", "kty", "n")}
    text = json.dumps(members, separators=(",", ":"), sort_keys=True)  # RFC 7638 section 3.1
    thumbprint = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")
    assert key == {**members, "kty": "RSA", "kid": thumbprint, "use": "sig", "alg": "RS256"}
    assert len(base64.urlsafe_b64decode(key["n"] + "==")) * 8 == 2048


async def test_keys_are_at_their_older_address_too(forge: Forge) -> None:
    answer = await forge.anonymous.get(f"{forge.base}/-/jwks", expect=200)
    assert (answer.body["keys"], answer.headers["Cache-Control"]) == (await shown(forge), CACHED)


async def test_another_service_verifies_a_token_knowing_the_url_only(
    forge: Forge, project: CiProject
) -> None:
    runner = await a_runner(forge, project_id=project.id)
    token = await token_of(project, runner)
    said = await Consumer(forge.base, "https://vault.example").claims(token)
    assert said["sub"] == f"project_path:{project.path}:ref_type:branch:ref:topic"
    with pytest.raises(jwt.InvalidAudienceError):
        await Consumer(forge.base, "https://other.example").claims(token)
    head, payload, signature = token.split(".")
    forged = {**said, "ref_protected": "true"}
    payload = base64.urlsafe_b64encode(json.dumps(forged).encode()).decode().rstrip("=")
    with pytest.raises(jwt.InvalidSignatureError):
        await Consumer(forge.base, "https://vault.example").claims(f"{head}.{payload}.{signature}")


async def test_servers_that_start_at_the_same_time_make_one_key(
    new_database: Callable[[], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forges, "give_identity_key", lambda *_: None)
    url = new_database()
    one, other = running_forge(url, tmp_path, work=False), running_forge(url, tmp_path, work=False)
    first, second = await asyncio.gather(one.__aenter__(), other.__aenter__())
    try:
        assert await first.database.value("SELECT count(*) FROM identity_keys") == 1
        assert len(await shown(first)) == 1
        assert await shown(first) == await shown(second)
        project = await ci_project(first)
        token = await token_of(project, await a_runner(second, project_id=project.id))
        assert (await Consumer(second.base, "https://vault.example").claims(token))["iss"] == second.base
    finally:
        await other.__aexit__(None, None, None)
        await one.__aexit__(None, None, None)


async def test_the_private_key_is_in_no_table_in_clear(forge: Forge) -> None:
    private = forges.identity_key().private
    row = await forge.database.one("SELECT identity_keys::text AS text, private_key FROM identity_keys")
    assert forges.identity_key().kid in row.text
    assert bytes(row.private_key).find(b"PRIVATE KEY") == -1
    assert forge.server.app[SERVICES].vault.decrypt(bytes(row.private_key)) == private


async def pass_time(forge: Forge, **by: float) -> None:
    """Make all keys older; nothing else depends on time."""
    await forge.execute(
        "UPDATE identity_keys SET signs_from = signs_from - %(by)s::interval", by=datetime.timedelta(**by)
    )


async def test_a_new_key_is_shown_before_it_signs_and_an_old_one_until_its_tokens_are_over(
    new_forge: Any,
) -> None:
    async with new_forge(work=True) as forge:
        services = forge.server.app[SERVICES]
        project = await ci_project(forge)
        runner = await a_runner(forge, project_id=project.id)
        consumer = Consumer(forge.base, "https://vault.example")
        (old,) = await shown(forge)

        new = await keys.rotate(services, SYSTEM, revoke=False)
        assert await shown(forge) == [json.loads(new.public), old]
        before = await token_of(project, runner)
        assert kid_of(before) == old["kid"]
        await pass_time(forge, hours=1)
        after = await token_of(project, runner)
        assert kid_of(after) == new.kid
        for token in (before, after):
            assert (await consumer.claims(token))["iss"] == forge.base

        await keys.forget(services)
        assert await shown(forge) == [json.loads(new.public), old]
        await pass_time(forge, days=31)
        await keys.forget(services)
        assert await shown(forge) == [json.loads(new.public)]
        assert kid_of(await token_of(project, runner)) == new.kid


def test_an_old_key_stays_longer_than_any_job_may_run() -> None:
    assert keys.LONGEST_JOB.total_seconds() > max(MONTH, projects._TIMEOUTS_END)


async def test_a_clock_that_is_set_back_ends_no_signing(new_forge: Any) -> None:
    async with new_forge(work=True) as forge:
        project = await ci_project(forge)
        runner = await a_runner(forge, project_id=project.id)
        (first,) = await shown(forge)
        await keys.rotate(forge.server.app[SERVICES], SYSTEM, revoke=False)
        await forge.execute("UPDATE identity_keys SET signs_from = signs_from + interval '99 years'")
        assert kid_of(await token_of(project, runner)) == first["kid"]


async def test_a_revoked_key_verifies_nothing_any_more(new_forge: Any) -> None:
    async with new_forge(work=True) as forge:
        project = await ci_project(forge)
        runner = await a_runner(forge, project_id=project.id)
        consumer = Consumer(forge.base, "https://vault.example")
        before = await token_of(project, runner)
        new = await keys.rotate(forge.server.app[SERVICES], SYSTEM, revoke=True)
        assert await shown(forge) == [json.loads(new.public)]
        with pytest.raises(jwt.PyJWKClientError, match="Unable to find a signing key"):
            await consumer.claims(before)
        after = await token_of(project, runner)
        assert (kid_of(after), (await consumer.claims(after))["iss"]) == (new.kid, forge.base)
