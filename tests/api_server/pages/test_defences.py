"""What pages keep out: forms that are not ours, what is no text, and whoever would keep or frame a page."""

import re
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from api_server.pages import account, site
from tests.support.browser import Browser, browsing
from tests.support.forge import Forge
from tests.support.git_client import git_url
from tests.support.large_trees import plumbing

#: What answers forms beside the declared pages.
OTHERS = [
    "/-/sign_in",
    "/-/sign_out",
    "/-/invites/{token}/accept",
    "/-/invites/{token}/decline",
    "/-/emails/{id}/{token}",
    "/-/password",
    "/-/password/{token}",
]
KEPT = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
_PARAMETER = re.compile(r"\{(\w+)(?::(?:[^{}]|\{[^{}]*\})*)?\}")


def paths(method: str) -> list[str]:
    declared = [route.path for pages in site.PAGES for route in pages.routes if route.method == method]
    return [_PARAMETER.sub("1", path) for path in declared]


@pytest.fixture
async def boss(forge: Forge) -> AsyncIterator[Browser]:
    async with browsing(forge, await forge.user("boss", admin=True)) as opened:
        yield opened


def is_kept_close(answer: aiohttp.ClientResponse) -> bool:
    policy = answer.headers.get("Content-Security-Policy", "")
    strict = policy.startswith("default-src 'none'; ") and "unsafe" not in policy and "*" not in policy
    return strict and answer.headers.items() >= KEPT.items()


async def test_no_form_is_taken_that_is_not_ours(boss: Browser) -> None:
    taken = []
    for path in paths("POST") + [_PARAMETER.sub("1", path) for path in OTHERS]:
        for sent in ({}, {"csrf_token": "x" * 43}, {"csrf_token": "☃"}):
            async with boss.session.post(f"{boss.base}{path}", data=sent, allow_redirects=False) as answer:
                if answer.status != 403 or "cannot be accepted" not in await answer.text():
                    taken.append((path, sent, answer.status))
                assert is_kept_close(answer), path
    assert taken == []


async def test_every_page_forbids_scripts_of_others_frames_and_copies(boss: Browser) -> None:
    """Found or not; files for download have rules of their own."""
    for path in [*paths("GET"), "/-/sign_in?return_to=x", "/-/invites/x", "/-/emails/1/x", "/-/password/x"]:
        async with boss.session.get(f"{boss.base}{path}", allow_redirects=False) as answer:
            if answer.status < 300 or answer.status >= 400:
                assert is_kept_close(answer) or "attachment" in answer.headers["Content-Disposition"], path
            assert answer.headers["Cache-Control"] == "no-store", path


async def test_what_has_moved_is_kept_by_nobody_on_the_way(forge: Forge) -> None:
    """A shared cache would tell strangers the new path of a private project."""
    owner = await forge.user()
    made = await forge.project(owner)
    assert (await owner.api.put(f"/projects/{made['id']}", {"path": "elsewhere"})).status == 200
    async with browsing(forge, owner) as browser:
        old = f"{browser.base}/{made['path_with_namespace']}"
        async with browser.session.get(old, allow_redirects=False) as answer:
            assert (answer.status, answer.headers.get("Cache-Control")) == (301, "no-store")


async def test_what_is_no_text_is_refused_as_such(boss: Browser) -> None:
    await boss.get(account.TOKENS)
    assert (await boss.send(account.TOKENS, name="a\0b", scope_api="1")).status in (400, 403)
    async with boss.session.post(f"{boss.base}/-/sign_in", data=_no_unicode("csrf_token")) as answer:
        assert answer.status == 403
    storage = "/admin/application_settings/repository"
    await boss.get(storage)
    await boss.send(f"{storage}/check", object="http://[")
    assert boss.status == 400


async def test_the_api_takes_no_such_form_either(forge: Forge) -> None:
    headers = {"PRIVATE-TOKEN": forge.root.token}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{forge.base}/api/v4/groups", data=_no_unicode("name"), headers=headers) as answer,
    ):
        assert answer.status == 400, await answer.text()


async def test_a_root_folder_of_very_many_files_keeps_nobody_waiting(forge: Forge, tmp_path: Path) -> None:
    """Looking for its README; the tests' watchdog says who holds the loop."""
    owner, made = await forge.user(), await plumbing(tmp_path)
    project = await forge.project(owner)
    blob = ("100644", made.blob())
    tree = made.tree({f"{number:06}": blob for number in range(160_000)} | {"readme.txt": blob})
    address = git_url(forge, project["path_with_namespace"], owner)
    await made.git("push", "--quiet", address, f"{made.commit(tree)}:refs/heads/main")
    async with browsing(forge, owner) as browser:
        await browser.get(f"/{project['path_with_namespace']}")
        assert "readme.txt" in browser.text


def _no_unicode(name: str) -> aiohttp.MultipartWriter:
    """A form whose field is half of a character."""
    writer = aiohttp.MultipartWriter("form-data")
    kind = {"Content-Type": "text/plain; charset=unicode_escape"}
    writer.append(rb"\ud800", kind).set_content_disposition("form-data", name=name)
    return writer
