"""`/-/user_settings/password`: another password, for somebody who knows the present one."""

import asyncio
import functools

from aiohttp import web

from api_server.accounts import passwords
from api_server.accounts.passwords import problem_with
from api_server.pages import page, queries, sessions
from api_server.pages.account.profile import PATH as SETTINGS
from api_server.pages.account.profile import user_of
from api_server.pages.queries import Account
from api_server.pages.routes import Pages
from api_server.pages.sessions import Form, Visitor
from api_server.web import context, grounds
from api_server.web.errors import not_found
from api_server.web.grounds import Ground
from api_server.web.rate_limits import RateLimiter
from api_server.web.routes import SIGNED_IN

pages = Pages()

PATH = f"{SETTINGS}/password"
#: Attempts a minute of one account. Not counted with those to sign in, which anybody can make in her name.
ATTEMPTS = 5

BY_USER = web.AppKey("password_changes_by_user", RateLimiter)


def setup(app: web.Application) -> None:
    app[BY_USER] = RateLimiter("password changes", lambda: ATTEMPTS)


@pages.get(PATH, access=SIGNED_IN)
async def show_form(request: web.Request, who: Visitor) -> web.Response:
    return page.answer(request, who, "account/password.html", problems=[])


@pages.post(PATH)
async def change_password(request: web.Request, who: Visitor, form: Form) -> web.Response:
    """Ends all other sessions."""
    user = user_of(who)
    if wait := request.config_dict[BY_USER].retry_after(user.id):
        return _refused(request, who, f"There were too many attempts. Try again in {wait} seconds.", 429)
    read = functools.partial(queries.find_account, login=user.username)
    account = await read(context.database(request))
    if account is None:
        raise not_found("User")
    if problem := await _problem(request, account, form):
        return _refused(request, who, problem, 400)
    vault = context.vault(request)
    hashed = await asyncio.to_thread(vault.hash_password, str(form.get("password", "")))
    grounds.rely_on(request, Ground((f"user:{user.id}",), account, read))
    grounds.end(request, f"user:{user.id}")
    async with context.database(request).transaction() as transaction:
        await passwords.change(transaction, user.id, hashed, request.remote)
        begun = await sessions.begin(request, transaction, user)
    response = page.see_other(
        request, begun, PATH, "Your password is changed. All other sessions have ended."
    )
    sessions.remember(request, response, begun)
    return response


async def _problem(request: web.Request, account: Account, form: Form) -> str:
    """Why the password cannot be changed to that, or ""."""
    present, new = str(form.get("present_password", "")), str(form.get("password", ""))
    # Takes some 50 ms of computing.
    matches = await asyncio.to_thread(context.vault(request).password_matches, present, account.password_hash)
    if not matches or account.password_hash is None:
        return "The present password is not right."
    if text := problem_with(new):
        return f"Password {text}."
    return "" if new == form.get("password_confirmation") else "The two new passwords are not the same."


def _refused(request: web.Request, who: Visitor, problem: str, status: int) -> web.Response:
    return page.answer(request, who, "account/password.html", status, problems=[problem])
