"""Forms of pages: refused forms come back as they were typed, repeated ones are handled once, and no text is lost when
a session has ended."""

import asyncio
import re
from collections.abc import AsyncIterator
from html import unescape
from typing import Any

import pytest

from api_server.pages import queries
from api_server.pages.forms import problems_of, shown_again
from api_server.state.secrets import digest
from api_server.web.errors import (
    ApiError,
    bad_parameters,
    bad_request,
    conflict,
    forbidden,
    invalid,
    not_found,
)
from tests.support.browser import COOKIE, Browser, browsing
from tests.support.forge import Forge, Person, new_name

PROFILE = "/-/user_settings"
EMAILS = f"{PROFILE}/emails"


@pytest.fixture
async def person(forge: Forge) -> Person:
    return await forge.user()


@pytest.fixture
async def browser(forge: Forge, person: Person) -> AsyncIterator[Browser]:
    async with browsing(forge, person) as opened:
        yield await opened.get(PROFILE)


def fields_of(page: str) -> dict[str, str]:
    """Return the hidden fields of the page's first form with a key."""
    return dict(re.findall(r'<input type="hidden" name="(csrf_token|form_key)" value="([^"]*)"', page))


def element(page: str, identifier: str) -> str:
    found = re.search(rf'<[^<]* id="{identifier}"[^>]*>', page)
    assert found, page
    return unescape(found[0])


async def test_a_refused_form_comes_back_with_what_was_typed(browser: Browser) -> None:
    await browser.send(EMAILS, email='no "address"<b>')
    assert (browser.status, browser.title) == (400, "Your account")
    assert element(browser.text, "email") == (
        '<input id="email" name="email" type="email" value="no "address"<b>" aria-describedby="email-problem"'
        ' aria-invalid="true" autofocus autocomplete="email" required="True">'
    )
    assert '<p class="wrong" id="email-problem">Email address is invalid.</p>' in browser.text
    email = f"{new_name('e')}@example.org"
    await browser.send(EMAILS, email=email)
    assert (browser.status, browser.path) == (200, PROFILE)
    assert f"A confirmation email has been sent to {email}" in browser.text


async def test_two_identical_forms_at_once_are_one(browser: Browser, forge: Forge, person: Person) -> None:
    """A double click sends them: the browser shows only the answer to the second."""
    sent = fields_of(browser.text) | {"email": f"{new_name('e')}@example.org"}

    async def submit() -> tuple[int, str | None]:
        url = f"{browser.base}{EMAILS}"
        async with browser.session.post(url, data=sent, allow_redirects=False) as answer:
            return answer.status, answer.headers.get("Location")

    assert await asyncio.gather(submit(), submit(), submit()) == [(303, PROFILE)] * 3
    listed = await forge.root.get(f"/users/{person.id}/emails")
    assert [email["email"] for email in listed.body] == [sent["email"]]
    await browser.send(EMAILS, email=f"2{sent['email']}")  # other values make another form
    assert len((await forge.root.get(f"/users/{person.id}/emails")).body) == 2


async def test_a_refused_form_may_be_sent_again_as_it_is(browser: Browser, forge: Forge) -> None:
    email = f"{new_name('e')}@example.org"
    other = await forge.root.post("/users", {**_NEW_USER, "email": email, "username": new_name("u")})
    sent = fields_of(browser.text) | {"email": email}
    for status in (400, 400):
        async with browser.session.post(f"{browser.base}{EMAILS}", data=sent) as answer:
            assert (answer.status, "already been taken" in await answer.text()) == (status, True)
    await forge.root.delete(f"/users/{other.body['id']}?hard_delete=true")


_NEW_USER = {"name": "Other", "password": "correct horse battery", "skip_confirmation": True}


async def test_a_form_that_is_still_being_answered_is_not_answered_twice(
    browser: Browser, forge: Forge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("api_server.pages.forms._LONGEST_WAIT", 0.2)
    sent = fields_of(browser.text) | {"email": f"{new_name('e')}@example.org"}
    cookie = next(each.value for each in browser.session.cookie_jar if each.key == COOKIE)
    monkeypatch.setattr("api_server.pages.forms._name_of", lambda *_: digest(cookie))
    async with forge.database.transaction() as transaction:
        assert await queries.claim_form(transaction, digest(cookie))
    async with browser.session.post(f"{browser.base}{EMAILS}", data=sent) as answer:
        text = await answer.text()
    assert (answer.status, "still being processed" in text, sent["email"] in text) == (409, True, True)


async def test_what_was_written_is_shown_to_one_whose_session_has_ended(browser: Browser) -> None:
    page = browser.text
    await browser.send("/-/user_settings/active_sessions/end_others")
    jar = {each.key: each.value for each in browser.session.cookie_jar}
    await browser.send("/-/sign_out")
    sent = fields_of(page) | {"email": "my <new> address"}
    cookies = {COOKIE: jar[COOKIE]}
    async with browser.session.post(f"{browser.base}{EMAILS}", data=sent, cookies=cookies) as answer:
        text = await answer.text()
    assert (answer.status, "Your session has expired." in text, "my &lt;new&gt; address" in text) == (
        403,
        True,
        True,
    )
    assert sent["csrf_token"] not in text


@pytest.mark.parametrize(
    ("name", "typed", "shown"),
    [
        ("shared_secret", "abc", ""),
        ("title", "https://me:secret@example.org", "https://me:secret@example.org"),
        ("url", "https://me:sec@ret@example.org/a.git", "https://example.org/a.git"),
        ("url", "https://token@example.org", "https://example.org"),
        ("external_url", " ssh://me:sec/ret@example.org:22/x", " ssh://example.org:22/x"),
        ("url", "me:secret@example.org", "example.org"),
        ("url", "ssh://git@example.org/x.git", "ssh://git@example.org/x.git"),
        ("url", "https://*****:*****@example.org/x.git", "https://*****:*****@example.org/x.git"),
        ("url", "https://example.org:8443/a@b", "https://example.org:8443/a@b"),
        ("url", ["https://me:secret@example.org"], ["https://me:secret@example.org"]),
    ],
)
def test_secrets_are_not_shown_again(name: str, typed: Any, shown: Any) -> None:
    assert shown_again(name, typed) == shown


@pytest.mark.parametrize(
    ("error", "problems"),
    [
        (invalid({"name": ["is too long", "is odd"]}), {"name": ["is too long", "is odd"]}),
        (invalid({"base": ["You have enough."]}), {"": ["You have enough."]}),
        (
            bad_parameters("name, path are missing, at least one parameter must be provided"),
            {"name": ["is missing"]},
        ),
        (
            bad_parameters("name is missing", "level does not have a valid value"),
            {"name": ["is missing"], "level": ["does not have a valid value"]},
        ),
        (bad_parameters("variables[0][key] is empty"), {"variables": ["is empty"]}),
        (bad_parameters("path must be a, b or c"), {"path": ["must be a, b or c"]}),
        (bad_parameters("the body is not valid JSON"), {"": ["the body is not valid JSON"]}),
        (conflict(["Another one exists: !1"]), {"": ["Another one exists: !1."]}),
        (invalid('Failed to save group {:path=>["is taken"]}'), {"path": ["is taken"]}),
        (bad_request('Note {:note=>["can\'t be blank"]}'), {"body": ["can't be blank"]}),
        (forbidden("This is closed"), {"": ["This is closed."]}),
        (forbidden(), {}),
        (not_found("Branch"), {"": ["Branch not found"]}),
        (ApiError(422, {"message": "Not this way"}), {"": ["Not this way."]}),
    ],
)  # fmt: skip
def test_errors_of_the_api_stand_at_their_fields(error: ApiError, problems: dict[str, list[str]]) -> None:
    assert problems_of(error) == problems
