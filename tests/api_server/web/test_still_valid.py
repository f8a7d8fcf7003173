"""Whoever has begun something long is judged once more when it arrives: her token and her account as they are then."""

import attrs
import pytest
from aiohttp.test_utils import make_mocked_request

from api_server.ci.pipelines.states import Event
from api_server.web import auth, context
from api_server.web.auth import Actor
from api_server.web.errors import ApiError
from tests.support.ci import ci_project, happen, run
from tests.support.forge import Forge, Person


async def _refusal(forge: Forge, caller: Actor) -> int | None:
    request = make_mocked_request("POST", "/", app=forge.server.app)
    try:
        assert await auth.still_valid(context.database(request), caller) == caller
    except ApiError as problem:
        return problem.status
    return None


async def _caller(forge: Forge, person: Person) -> Actor:
    request = make_mocked_request("POST", "/", app=forge.server.app)
    return await auth.caller_of_personal_access_token(request, person.token)


async def test_a_token_that_is_revoked_meanwhile_is_refused(forge: Forge) -> None:
    person = await forge.user()
    caller = await _caller(forge, person)
    assert await _refusal(forge, caller) is None
    await person.api.delete("/personal_access_tokens/self")
    assert await _refusal(forge, caller) == 401


async def test_whoever_acts_for_somebody_else_still_does(forge: Forge) -> None:
    """And never with her own rights."""
    admin = await _caller(forge, await forge.user("admin", admin=True))
    alice = attrs.evolve(await _caller(forge, await forge.user("alice")), impersonator=admin)
    acting = attrs.evolve(alice, token_id=admin.token_id)
    assert await _refusal(forge, acting) is None
    await forge.root.delete(f"/personal_access_tokens/{admin.token_id}")
    assert await _refusal(forge, acting) == 401


async def test_a_user_who_is_blocked_meanwhile_is_refused(forge: Forge) -> None:
    person = await forge.user()
    caller = await _caller(forge, person)
    await forge.root.post(f"/users/{person.id}/block")
    assert await _refusal(forge, caller) == 403
    await forge.root.delete(f"/users/{person.id}")
    assert await _refusal(forge, caller) == 401


@pytest.mark.parametrize("event", ["success", "cancel"])
async def test_a_job_that_ends_meanwhile_is_refused(forge: Forge, event: Event) -> None:
    project = await ci_project(forge)
    job = await project.job()
    token = await run(forge, job["id"])
    request = make_mocked_request("POST", "/", app=forge.server.app)
    caller = await auth.caller_of_job_token(request, token)
    assert await _refusal(forge, caller) is None
    await happen(forge, job["id"], event)
    assert await _refusal(forge, caller) == 401
