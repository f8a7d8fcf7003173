"""`/-/user_settings`: who somebody is here, and her further addresses."""

import attrs
import orjson
from aiohttp import web

from api_server.accounts import email_queries, emails
from api_server.accounts.user_queries import User
from api_server.pages import page, problems
from api_server.pages.routes import Pages
from api_server.pages.sessions import Form, Visitor
from api_server.state.listing import Page
from api_server.web import context
from api_server.web.errors import ApiError, reason_of
from api_server.web.pagination import MAX_PER_PAGE
from api_server.web.routes import SIGNED_IN

pages = Pages()

PATH = "/-/user_settings"


@attrs.frozen(kw_only=True)
class EmailId:
    id: int


def user_of(who: Visitor) -> User:
    """Who has signed in; for pages that nobody else reaches."""
    if who.user is None:
        raise problems.SignInFirst
    return who.user


@pages.get(PATH, access=SIGNED_IN)
async def show_profile(request: web.Request, who: Visitor) -> web.Response:
    return await _page(request, who)


@pages.post(f"{PATH}/emails")
async def add_email(request: web.Request, who: Visitor, form: Form) -> web.Response:
    """Unconfirmed, until somebody has followed the link that is mailed there."""
    email, settings = str(form.get("email", "")).strip(), context.settings(request)
    try:
        async with context.database(request).transaction() as transaction:
            await emails.add(transaction, user_of(who), email, who.author(), settings, confirmed=False)
    except ApiError as problem:
        return await _page(request, who, email, reason_of(problem), problem.status)
    return page.see_other(
        request, who, PATH, f"A mail with a link that confirms it is on its way to {email}."
    )


@pages.post(f"{PATH}/emails/{{id}}/remove")
async def remove_email(request: web.Request, who: Visitor, wanted: EmailId) -> web.Response:
    async with context.database(request).transaction() as transaction:
        await emails.remove(transaction, wanted.id, user_of(who).id, who.author())
    return page.see_other(request, who, PATH, "The address is removed.")


async def _page(
    request: web.Request, who: Visitor, email: str = "", problem: str = "", status: int = 200
) -> web.Response:
    most = Page(MAX_PER_PAGE, descending=False, counted=False)
    listed = await email_queries.list_emails(context.database(request), most, user_of(who).id)
    return page.answer(
        request,
        who,
        "account/profile.html",
        status,
        emails=orjson.loads(listed.body),
        email=email,
        problem=problem,
    )
