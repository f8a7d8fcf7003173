"""`/-/user_settings/active_sessions`: where somebody has signed in, and ending that."""

import re

import attrs
from aiohttp import web

from api_server.pages import page, queries
from api_server.pages.account.profile import PATH as SETTINGS
from api_server.pages.account.profile import user_of
from api_server.pages.routes import Pages
from api_server.pages.sessions import Visitor
from api_server.state.secrets import digest
from api_server.web import context, grounds
from api_server.web.routes import SIGNED_IN

pages = Pages()

PATH = f"{SETTINGS}/active_sessions"
#: Sessions that are listed; all others can be ended together.
MOST = 100

#: What browsers and systems say of themselves, of which the first that fits is meant.
_BROWSERS = {"Edg": "Edge", "OPR": "Opera", "Firefox": "Firefox", "Chrom": "Chromium", "Safari": "Safari"}
_SYSTEMS = {
    "Android": "Android",
    "iPhone": "iOS",
    "iPad": "iOS",
    "Windows": "Windows",
    "Mac OS": "macOS",
    "Linux": "Linux",
}


@attrs.frozen(kw_only=True)
class SessionId:
    id: int


@pages.get(PATH, access=SIGNED_IN)
async def list_sessions(request: web.Request, who: Visitor) -> web.Response:
    found = await queries.list_sessions(context.database(request), user_of(who).id, digest(who.cookie), MOST)
    shown = [(each, browser_named(each.user_agent or "")) for each in found]
    return page.answer(request, who, "account/sessions.html", sessions=shown)


@pages.post(f"{PATH}/{{id}}/end")
async def end_session(request: web.Request, who: Visitor, wanted: SessionId) -> web.Response:
    user = user_of(who)
    grounds.end(request, f"user:{user.id}")
    async with context.database(request).transaction() as transaction:
        await queries.end_session(transaction, user.id, wanted.id)
    return page.see_other(request, who, PATH, "The session has ended.")


@pages.post(f"{PATH}/end_others")
async def end_others(request: web.Request, who: Visitor) -> web.Response:
    user = user_of(who)
    grounds.end(request, f"user:{user.id}")
    async with context.database(request).transaction() as transaction:
        await queries.end_other_sessions(transaction, user.id, digest(who.cookie))
    return page.see_other(request, who, PATH, "All other sessions have ended.")


def browser_named(user_agent: str) -> str:
    """`Firefox on Linux`, of what a browser calls itself; the beginning of that where it is none of those known."""
    browser = next((name for word, name in _BROWSERS.items() if word in user_agent), "")
    system = next((name for word, name in _SYSTEMS.items() if word in user_agent), "")
    if browser:
        return f"{browser} on {system}" if system else browser
    return re.sub(r"\s+", " ", user_agent)[:60] or "Unknown"
