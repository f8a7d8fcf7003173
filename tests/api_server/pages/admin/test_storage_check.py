"""The button that asks through the external storage: what it says where all is right, and of each mistake."""

import contextlib
import html
import re
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from tests.api_server.pages.admin.conftest import STORAGE_TOKEN, Scene, running_edge
from tests.support.browser import Browser
from tests.support.certificates import key_and_certificate
from tests.support.ports import free_port

PATH = "/admin/application_settings/repository"
THROUGH, AGAIN = "An object through the storage", "The same once more, from the storage's own copy"
TOKENS = ("The service takes the storage's token", "The service refuses a wrong token")


@pytest.fixture(scope="module")
async def path(scene: Scene) -> str:
    """Of a file in a public project."""
    project = await scene.forge.project(visibility="public", initialize_with_readme=True)
    return f"/{project['path_with_namespace']}/-/raw/main/README.md"


async def _set(scene: Scene, url: str, token: str = STORAGE_TOKEN) -> None:
    settings = {
        "static_objects_external_storage_url": url,
        "static_objects_external_storage_auth_token": token,
        "outbound_local_requests_whitelist": ["127.0.0.1", "localhost", "nowhere.invalid"],
    }
    assert (await scene.forge.root.put("/application/settings", settings)).status == 200


async def _check(boss: Browser, named: str = "") -> dict[str, tuple[str, str, str]]:
    """State, text and remedy of what was found, by its title."""
    await boss.get(PATH)
    await boss.send(f"{PATH}/check", object=named)
    pattern = (
        r'<li class="finding"><strong>(.*?)</strong>.*?</span> (\w+)</span>\s*<p class="seen">(.*?)</p>'
        r'(?:<p class="remedy">(.*?)</p>)?</li>'
    )
    return {
        html.unescape(title): (state, html.unescape(text), html.unescape(remedy))
        for title, state, text, remedy in re.findall(pattern, boss.text, re.DOTALL)
    }


async def test_all_is_right(scene: Scene, boss: Browser, path: str) -> None:
    await _set(scene, scene.edge)
    found = await _check(boss)
    assert {title: state for title, (state, _, _) in found.items()} == dict.fromkeys(
        [*TOKENS, THROUGH, AGAIN, "Purge"], "passed"
    )
    assert f"<code>{path}</code>" in boss.text
    assert re.search(
        r"200 in \d+ ms: \d+ bytes, SHA-256 \w{16}….*fwd=uri-miss.*the same bytes", found[THROUGH][1]
    )
    assert re.search(r"Cache-Status: forgelet-edge; hit; ttl=\d+", found[AGAIN][1])
    assert STORAGE_TOKEN not in boss.text


async def test_a_private_object_is_asked_for_with_the_administrators_own_token(
    scene: Scene, boss: Browser
) -> None:
    await _set(scene, scene.edge)
    project = await scene.forge.project(initialize_with_readme=True)
    found = await _check(boss, f"{scene.forge.base}/{project['path_with_namespace']}/-/raw/main/README.md")
    assert [state for state, _, _ in found.values()] == ["passed"] * 5
    assert "flso-" not in boss.text


@pytest.mark.parametrize(
    ("named", "problem"),
    [
        ("/group/project", "is no path of a raw file or an archive"),
        ("/nobody/has/this/-/raw/main/x", "There is no project nobody/has/this."),
    ],
)
async def test_what_is_no_object_is_said_and_stays_in_the_form(
    scene: Scene, boss: Browser, named: str, problem: str
) -> None:
    await _set(scene, scene.edge)
    await _check(boss, named)
    assert boss.status == 400
    assert problem in boss.text
    assert f'value="{named}"' in boss.text


async def test_an_object_that_is_not_there(scene: Scene, boss: Browser, path: str) -> None:
    await _set(scene, scene.edge)
    found = await _check(boss, f"{path}.txt")
    assert found[THROUGH][:2] == ("failed", "It answers 404, as the service does: there is no such object.")


@contextlib.asynccontextmanager
async def _storage(answer: web.Response, **options: Any) -> AsyncIterator[str]:
    """A storage that always answers the same, by its URL."""

    async def handle(_: web.Request) -> web.Response:
        return web.Response(status=answer.status, headers=answer.headers, body=answer.body)

    app = web.Application()
    app.router.add_get("/{rest:.*}", handle)
    server = TestServer(app, scheme="https" if options else "http")
    await server.start_server(**options)
    yield str(server.make_url("")).rstrip("/")
    await server.close()


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (web.Response(status=400), "It answers 400: it takes no path of a static object below this URL."),
        (
            web.Response(status=302, headers={"Location": "https://elsewhere.example.org/x?token=secret"}),
            "It answers 302 and leads to https://elsewhere.example.org/x.",
        ),
        (
            web.Response(body=b"<h1>Hello</h1>"),
            "It answers 200 with something else than our object: 14 bytes",
        ),
        (web.Response(status=404), "It answers 404, though the service gives it the object: nothing is said"),
        (
            web.Response(status=502, body=b"no origin"),
            "It answers 502: it gets no answer from the service. no origin",
        ),
        (web.Response(status=418), "It answers 418: nothing is said"),
        (
            web.Response(status=403, body=b"The external storage token is not the configured one.\n"),
            "The service refuses the token that the storage sends (403).",
        ),
    ],
    ids=lambda each: str(each.status) if isinstance(each, web.Response) else "",
)
async def test_a_storage_that_answers_something_else(
    scene: Scene, boss: Browser, path: str, answer: web.Response, text: str
) -> None:
    async with _storage(answer) as url:
        await _set(scene, url)
        found = await _check(boss, path)
    assert [found[title][0] for title in TOKENS] == ["passed", "passed"]
    assert found[THROUGH][0] == "failed"
    assert found[THROUGH][1].startswith(text)
    assert found[THROUGH][2]
    assert AGAIN not in found


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("http://nowhere.invalid", "The name nowhere.invalid is not resolved."),
        ("http://127.0.0.1:{free}", "The connection to 127.0.0.1:{free} is refused: nothing listens there."),
        ("https://127.0.0.1:{service}", "TLS with 127.0.0.1:{service} fails: "),
        (
            "http://[::1]:{free}",
            "This service may not call ::1:{free}: Requests to loopback addresses are not allowed.",
        ),
    ],
)
async def test_a_storage_that_is_not_reached(
    scene: Scene, boss: Browser, path: str, url: str, text: str
) -> None:
    names = {"free": free_port(), "service": scene.forge.settings.port}
    await _set(scene, url.format(**names))
    found = await _check(boss, path)
    assert found[THROUGH][0] == "failed"
    assert found[THROUGH][1].startswith(text.format(**names))


async def test_a_certificate_that_nobody_trusts(
    scene: Scene, boss: Browser, path: str, tmp_path: Path
) -> None:
    secret, certificate = key_and_certificate()
    pem = tmp_path / "both.pem"
    pem.write_bytes(secret + certificate)
    speaks_tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    speaks_tls.load_cert_chain(pem)
    async with _storage(web.Response(), ssl=speaks_tls) as url:
        await _set(scene, url)
        found = await _check(boss, path)
    text = "is not trusted: self-signed certificate."
    assert found[THROUGH][0] == "failed"
    assert re.fullmatch(rf"The TLS certificate of 127\.0\.0\.1:\d+ {text}", found[THROUGH][1])


async def test_the_storage_has_another_token_than_the_service(scene: Scene, boss: Browser, path: str) -> None:
    await _set(scene, scene.edge, "another-token")
    found = await _check(boss, path)
    assert [found[title][0] for title in TOKENS] == ["passed", "passed"]
    assert found[THROUGH][:2] == ("failed", "The service refuses the token that the storage sends (403).")


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({}, "It answers 302 and leads back to itself: the service takes its requests for a user's."),
        ({"origin": "http://127.0.0.1:{free}"}, "It answers 502: it gets no answer from the service."),
    ],
    ids=["no token", "no origin"],
)
async def test_an_edge_that_is_set_up_wrongly(
    scene: Scene, boss: Browser, path: str, settings: dict[str, str], text: str
) -> None:
    given = {name: value.format(free=free_port()) for name, value in settings.items()}
    async with running_edge({"origin": scene.forge.base} | given) as url:
        await _set(scene, url)
        found = await _check(boss, path)
    assert found[THROUGH][0] == "failed"
    assert found[THROUGH][1].startswith(text), found[THROUGH]


async def test_a_storage_that_keeps_nothing_works_as_a_detour(scene: Scene, boss: Browser, path: str) -> None:
    await _set(scene, scene.edge)
    text = (await scene.forge.anonymous.get(f"{scene.edge}{path}")).body
    async with _storage(web.Response(text=text)) as url:
        await _set(scene, url)
        found = await _check(boss, path)
    assert found[THROUGH][0] == "passed"
    assert found[AGAIN][0] == "warning"
    assert "does not say what its cache did" in found[AGAIN][1]


async def test_without_a_storage_there_is_nothing_to_check(scene: Scene, boss: Browser) -> None:
    await scene.forge.root.put("/application/settings", {"static_objects_external_storage_url": ""})
    await boss.get(PATH)
    assert "Check the storage" not in boss.text
