"""Access tokens of projects and groups: each has its own bot, which is a member there until its token is
revoked."""

import datetime
import re
import secrets
from urllib.parse import urlsplit

import attrs

from api_server.accounts import tokens, user_queries, users
from api_server.accounts.token_queries import revoke_token
from api_server.accounts.tokens import Issued, NewToken
from api_server.accounts.users import NewUser
from api_server.namespaces import access_token_queries, members
from api_server.namespaces.access_token_queries import Token
from api_server.namespaces.members import Source
from api_server.services import Services
from api_server.settings import Settings
from api_server.state import audit_trail
from api_server.state.audit_trail import SYSTEM, Author
from api_server.state.database import Transaction
from api_server.state.errors import NotFound
from api_server.web.errors import bad_request
from api_server.web.routes import Role

#: The lifetime of a token without a given expiry date.
LIFETIME = datetime.timedelta(days=365)


@attrs.frozen(kw_only=True)
class NewAccessToken:
    """A token to create, whose bot has the role `level`."""

    name: str
    scopes: list[str]
    level: Role
    description: str | None
    expires_at: datetime.date | None


async def create(
    services: Services, transaction: Transaction, source: Source, new_token: NewAccessToken, author: Author
) -> str:
    """Create a token and return its entity with its text. Raise 400 in GitLab's words; a bot cannot have a
    greater role than its creator."""
    if await user_queries.is_bot(transaction, author.id):
        raise bad_request(f"User does not have permission to create {source.kind} access token")
    if new_token.level > source.role:
        raise bad_request("Access level of the token contains permissions not held by the creating user")
    bot_id = await _make_bot(services, transaction, source, new_token, author)
    issued = await tokens.issue(
        transaction,
        NewToken(
            user_id=bot_id,
            name=new_token.name,
            scopes=new_token.scopes,
            description=new_token.description,
            expires_at=new_token.expires_at or transaction.now.date() + LIFETIME,
        ),
    )
    if await access_token_queries.are_more_than(
        transaction, source.ids, services.settings.access_tokens_limit
    ):
        raise bad_request("Access token limit reached")
    await _record_created(transaction, source, author, bot_id, new_token, issued)
    return await access_token_queries.show_new_token(transaction, issued.id, issued.text)


async def _make_bot(
    services: Services, transaction: Transaction, source: Source, new_token: NewAccessToken, author: Author
) -> int:
    """Create a user who is a member of the project or group and has no rights elsewhere. Return the user's
    id."""
    username = f"{source.kind}_{source.id}_bot_{secrets.token_hex(16)}"
    bot = NewUser(
        username=username,
        name=new_token.name,
        email=f"{username}@noreply.{_host(services.settings)}",
        confirmed=True,
        external=await access_token_queries.is_external(transaction, author.id),
        can_create_group=False,
        projects_limit=0,
        bot=True,
        bot_project_id=source.ids["project_id"],
        bot_namespace_id=source.ids["namespace_id"],
    )
    bot_id = await users.create(services, transaction, bot, author)
    user = await user_queries.find_user(transaction, bot_id)
    if user is None:
        raise NotFound
    await members.admit(transaction, source, user, new_token.level, author)
    return bot_id


def _host(settings: Settings) -> str:
    """Return this service's host name in a form that can end an e-mail address."""
    return re.sub(r"[^A-Za-z0-9.-]+", "-", urlsplit(settings.base_url).hostname or "localhost")


async def revoke(
    services: Services, transaction: Transaction, source: Source, token: Token, author: Author
) -> None:
    """Revoke the token and remove its bot."""
    if await revoke_token(transaction, token.id):
        await _record_deleted(transaction, source, author, token)
    await users.delete(services, transaction, token.user_id, author)


async def rotate(
    transaction: Transaction, source: Source, token: Token, expires_at: datetime.date | None, author: Author
) -> str:
    """Replace a token and return the entity of the new one. Raise 400 if the token is no longer valid, or if
    it has a greater role than the caller."""
    if token.access_level > source.role:
        raise bad_request("Not eligible to rotate tokens with permissions not held by the user")
    issued = await tokens.succeed(transaction, token, expires_at)
    await _record_deleted(transaction, source, author, token)
    successor = NewAccessToken(
        name=token.name,
        scopes=token.scopes,
        level=Role(token.access_level),
        description=token.description,
        expires_at=expires_at,
    )
    await _record_created(transaction, source, author, token.user_id, successor, issued)
    return await access_token_queries.show_new_token(transaction, issued.id, issued.text)


async def _record_created(
    transaction: Transaction,
    source: Source,
    author: Author,
    bot_id: int,
    new_token: NewAccessToken,
    issued: Issued,
) -> None:
    await audit_trail.record(
        transaction,
        f"{source.kind}_access_token_created",
        author,
        source.entity.target(bot_id, new_token.name),
        token_id=issued.id,
        scopes=", ".join(new_token.scopes),
        level=new_token.level.title,
    )


async def _record_deleted(transaction: Transaction, source: Source, author: Author, token: Token) -> None:
    target = source.entity.target(token.user_id, token.user_name)
    event_type = f"{source.kind}_access_token_deleted"
    await audit_trail.record(transaction, event_type, author, target, token_id=token.id)


KEPT_DAYS = 30


def setup(services: Services) -> None:
    async def remove_bots_without_tokens() -> None:
        for bot in await user_queries.bots_without_tokens(services.database, KEPT_DAYS):
            async with services.database.transaction() as transaction:
                await users.delete(services, transaction, bot.id, SYSTEM)

    services.queue.add_periodic("remove_bots_without_tokens", "17 3 * * *", remove_bots_without_tokens)
