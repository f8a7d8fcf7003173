"""LFS objects and credentials go where they may go, and nowhere else."""

from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from tests.api_server.code.lfs.client import oid_of
from tests.api_server.mirrors.lfs.servers import ONE, TWO, LargeFiles, LfsServer, answers, diverged
from tests.api_server.mirrors.service import database
from tests.api_server.mirrors.targets import BASIC, PASSWORD, Http
from tests.support.forge import Forge


@pytest.mark.parametrize(
    "href",
    ["http://10.0.0.1/objects", "http://169.254.169.254/latest", "http://127.0.0.1:1/x", "http://[::1]/"],
)
async def test_an_answer_that_points_to_a_private_address_is_not_followed(
    forge: Forge, http_target: Http, server: LfsServer, href: str
) -> None:
    host = http_target[1].split("/")[2]
    async with forge.instance_settings(outbound_local_requests_whitelist=[host]):
        files = await diverged(forge, http_target, ONE, TWO)
        server.change = lambda answer: [
            each["actions"]["upload"].update(href=href) for each in answer["objects"]
        ]
        shown = await files.push(files.commit(b"ours"), run=2)
        assert shown["last_error"].startswith(
            f"Error synchronizing LFS files:\n\n{min(oid_of(ONE), oid_of(TWO))}: "
            "An address that the target names is blocked: Requests to "
        )
        assert server.objects == {}


async def test_credentials_go_to_the_targets_own_server_only(
    files: LargeFiles, server: LfsServer, working: Forge
) -> None:
    seen: list[dict[str, str]] = []

    async def take(request: web.Request) -> web.Response:
        seen.append(dict(request.headers))
        await request.read()
        return web.Response()

    elsewhere = web.Application()
    elsewhere.router.add_put("/bucket", take)
    async with TestServer(elsewhere, host="127.0.0.1") as storage:
        signed = str(storage.make_url("/bucket")) + "?X-Signature=a%2Fb%20c"

        def to_storage(answer: dict[str, Any]) -> None:
            actions = answer["objects"][0]["actions"]
            actions.pop("verify")
            actions["upload"] = {
                "href": signed,
                "header": {"X-Kind": "lfs", "Host": "x", "Content-Length": "1"},
            }

        server.change = to_storage
        await files.client.bring(ONE)
        await files.push(files.commit(ONE), run=1)
    (headers,) = seen
    assert "Authorization" not in headers
    assert (headers["X-Kind"], headers["Content-Length"]) == ("lfs", str(len(ONE)))
    assert headers["Host"] != "x"


async def test_what_an_action_says_takes_the_place_of_the_mirrors_credentials(
    files: LargeFiles, server: LfsServer
) -> None:
    server.needs_token = True
    await files.client.bring(ONE)
    await files.push(files.commit(ONE), run=1)
    assert server.objects == {oid_of(ONE): ONE}


async def test_nothing_of_the_credentials_is_kept_or_logged(
    working: Forge, http_target: Http, server: LfsServer, capfd: pytest.CaptureFixture[str]
) -> None:
    files = await diverged(working, http_target, ONE)
    server.statuses["/objects/batch"] = answers(500, f"alice:{PASSWORD} {BASIC}")
    shown = await files.push(files.commit(b"ours"), run=2)
    assert "The target answered 500" in shown["last_error"]
    rows = await database(working).rows("SELECT row_to_json(remote_mirrors)::text AS row FROM remote_mirrors")
    said = "".join(capfd.readouterr()) + "".join(row.row for row in rows)
    assert "LFS objects did not get to the target" in said
    for secret in (PASSWORD, BASIC):
        assert secret not in said
