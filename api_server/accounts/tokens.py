"""Creating, revoking and rotating personal access tokens, each in the caller's transaction."""

import datetime

import attrs

from api_server.accounts import token_queries, users
from api_server.accounts.token_queries import Token
from api_server.services import Services
from api_server.state import audit_trail, secrets
from api_server.state.audit_trail import Author, Entity
from api_server.state.database import Transaction
from api_server.web.errors import bad_request

#: The lifetime of a rotated token without a given expiry date.
ROTATED_FOR = datetime.timedelta(days=7)


@attrs.frozen(kw_only=True)
class NewToken:
    """A token to create for the user with `user_id`."""

    user_id: int
    name: str
    scopes: list[str]
    description: str | None = None
    expires_at: datetime.date | None = None


@attrs.frozen
class Issued:
    """A new token with its text, which is not stored."""

    id: int
    text: str = attrs.field(repr=False)


async def issue(transaction: Transaction, new: NewToken) -> Issued:
    """Create a token. The caller records the event."""
    text = secrets.new_token(secrets.PERSONAL_ACCESS_TOKEN)
    token_id = await token_queries.create_token(transaction, **attrs.asdict(new), digest=secrets.digest(text))
    return Issued(token_id, text)


async def create(
    transaction: Transaction, new: NewToken, username: str, user_name: str, author: Author
) -> str:
    """Create a token and return its entity with its text."""
    created = await issue(transaction, new)
    await _record(transaction, "created", author, created.id, new.user_id, username, user_name)
    return await token_queries.show_new_token(transaction, created.id, created.text)


async def revoke(services: Services, transaction: Transaction, token: Token, author: Author) -> None:
    """Revoke a token, unless it is revoked already. A bot is removed with its last token."""
    if await token_queries.revoke_token(transaction, token.id):
        await _record_of(transaction, "revoked", author, token)
        if token.bot and not await token_queries.has_token(transaction, token.user_id):
            await users.delete(services, transaction, token.user_id, author)


async def rotate(
    transaction: Transaction, token: Token, expires_at: datetime.date | None, author: Author
) -> str:
    """Replace `token` and return the entity of the new one. Raise 400 if the old one is no longer valid."""
    successor = await succeed(transaction, token, expires_at)
    await _record_of(transaction, "revoked", author, token)
    await _record_of(transaction, "created", author, attrs.evolve(token, id=successor.id))
    return await token_queries.show_new_token(transaction, successor.id, successor.text)


async def succeed(transaction: Transaction, token: Token, expires_at: datetime.date | None) -> Issued:
    """Replace `token` like `rotate`; the caller records both events."""
    if token.expired:
        raise bad_request("Token is expired")
    if not await token_queries.revoke_token(transaction, token.id):
        raise bad_request("Token already revoked")
    successor = NewToken(
        user_id=token.user_id,
        name=token.name,
        scopes=token.scopes,
        description=token.description,
        expires_at=expires_at or transaction.now.date() + ROTATED_FOR,
    )
    return await issue(transaction, successor)


async def _record_of(transaction: Transaction, verb: str, author: Author, token: Token) -> None:
    await _record(transaction, verb, author, token.id, token.user_id, token.username, token.user_name)


async def _record(
    transaction: Transaction,
    verb: str,
    author: Author,
    token_id: int,
    user_id: int,
    username: str,
    user_name: str,
) -> None:
    """Record the event for the acting user, as GitLab does, or for the token's user if no user acts."""
    owner = (author.id, author.username) if author.username else (user_id, username)
    target = Entity("User", *owner).target(user_id, user_name)
    event_type = f"personal_access_token_{verb}"
    await audit_trail.record(transaction, event_type, author, target, token_id=token_id)
