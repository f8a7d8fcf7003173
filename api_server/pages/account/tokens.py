"""`/-/user_settings/personal_access_tokens`: somebody's own tokens; the text of a new one is shown once."""

import datetime
from collections.abc import Mapping
from typing import Any

import attrs
import orjson
from aiohttp import web

from api_server.accounts import token_queries, tokens
from api_server.accounts.tokens import NewToken
from api_server.pages import page
from api_server.pages.account.profile import PATH as SETTINGS
from api_server.pages.account.profile import user_of
from api_server.pages.paging import pager
from api_server.pages.routes import Pages
from api_server.pages.sessions import Form, Visitor
from api_server.web import context, grounds
from api_server.web.errors import not_found
from api_server.web.pagination import Paginated, wanted_page
from api_server.web.routes import SIGNED_IN

pages = Pages()

PATH = f"{SETTINGS}/personal_access_tokens"
#: What is offered, and what it opens.
SCOPES: Mapping[str, str] = {
    "api": "Everything that you may, by the API and git",
    "read_api": "Read everything that you may, by the API",
    "read_user": "Read users",
    "read_repository": "Clone and fetch, read files",
    "write_repository": "Clone, fetch and push",
    "create_runner": "Make runners",
    "manage_runner": "Change and remove runners",
    "self_rotate": "Take its own place by a new token",
}
FOR_ADMINISTRATORS: Mapping[str, str] = {"sudo": "Act with the rights of any user"}
_LIFETIME = datetime.timedelta(days=30)
_LONGEST_NAME = 255


@attrs.frozen(kw_only=True)
class ListTokens(Paginated):
    pass


@attrs.frozen(kw_only=True)
class TokenId:
    id: int


@pages.get(PATH, access=SIGNED_IN)
async def list_tokens(request: web.Request, who: Visitor, wanted: ListTokens) -> web.Response:
    until = context.now(request).date() + _LIFETIME
    return await _page(request, who, wanted, {"expires_at": until.isoformat()})


@pages.post(PATH)
async def create_token(request: web.Request, who: Visitor, form: Form) -> web.Response:
    """Answered at once, and not by a redirect: the token's text is in no address, cookie or table."""
    user, today = user_of(who), context.now(request).date()
    scopes = [scope for scope in _offered(who) if f"scope_{scope}" in form]
    name, until = str(form.get("name", "")).strip(), str(form.get("expires_at", "")).strip()
    problems = _problems(name, scopes, until, today)
    if problems:
        return await _page(request, who, ListTokens(), form, problems=problems, status=400)
    expires_at = datetime.date.fromisoformat(until) if until else None
    new = NewToken(user_id=user.id, name=name, scopes=scopes, expires_at=expires_at)
    async with context.database(request).transaction() as transaction:
        made = await tokens.create(transaction, new, user.username, user.name, who.author())
    return await _page(request, who, ListTokens(), {}, made=orjson.loads(made))


@pages.post(f"{PATH}/{{id}}/revoke")
async def revoke_token(request: web.Request, who: Visitor, wanted: TokenId) -> web.Response:
    token = await token_queries.find_token(context.database(request), wanted.id)
    if token is None or token.user_id != user_of(who).id:
        raise not_found("Token")
    grounds.end(request, f"token:{token.id}")
    async with context.database(request).transaction() as transaction:
        await tokens.revoke(request.config_dict, transaction, token, who.author())
    return page.see_other(request, who, PATH, f"The token {token.name} is revoked.")


def _offered(who: Visitor) -> dict[str, str]:
    return {**SCOPES, **(FOR_ADMINISTRATORS if who.is_admin else {})}


def _problems(name: str, scopes: list[str], until: str, today: datetime.date) -> list[str]:
    """What is wrong with a token to be, in sentences."""
    found = []
    if not name:
        found.append("Give it a name, by which you know it again.")
    if len(name) > _LONGEST_NAME:
        found.append(f"The name is too long (maximum is {_LONGEST_NAME} characters).")
    if not scopes:
        found.append("Choose at least one scope.")
    try:
        passed = bool(until) and datetime.date.fromisoformat(until) <= today
    except ValueError:
        found.append("The last day has to be written as 2026-12-31.")
    else:
        found += ["The last day has to be in the future."] if passed else []
    return found


async def _page(
    request: web.Request,
    who: Visitor,
    wanted: ListTokens,
    form: Form,
    *,
    made: dict[str, Any] | None = None,
    problems: list[str] | None = None,
    status: int = 200,
) -> web.Response:
    part = wanted_page(wanted, token_queries.LISTING)
    listed = await token_queries.list_tokens(
        context.database(request),
        part,
        user_id=user_of(who).id,
        revoked=None,
        active=True,
        search=None,
    )
    return page.answer(
        request,
        who,
        "account/tokens.html",
        status,
        tokens=orjson.loads(listed.body),
        pages=pager(request, part, listed),
        offered=_offered(who),
        form=form,
        made=made,
        problems=problems or [],
    )
