"""Accounts of people and bots: creating, changing and removing them; and the first administrator, `root`."""

import os
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal

import attrs

from api_server.accounts import email_queries, path_rules, user_queries
from api_server.accounts.instance_settings import MAX_INTEGER
from api_server.accounts.user_queries import User
from api_server.outbound.mail import is_address
from api_server.services import Key, Services
from api_server.settings import Settings
from api_server.state import audit_trail, secrets
from api_server.state.audit_trail import SYSTEM, Author, Entity
from api_server.state.database import Executor, Transaction
from api_server.state.errors import Conflict
from api_server.state.secrets import Vault
from api_server.web.errors import ApiError, check_present, conflict, invalid, not_found
from common.lifecycle import Change


async def existing_user(database: Executor, user_id: int) -> User:
    """Return the user with that id. Raise 404."""
    user = await user_queries.find_user(database, user_id)
    if user is None:
        raise not_found("User")
    return user


async def retire_bots(
    transaction: Transaction,
    author: Author,
    *,
    user_id: int | None = None,
    project_id: int | None = None,
    namespace_id: int | None = None,
) -> None:
    """Remove a bot, or those of a project, or those of a group and of all groups below it. Their tokens
    become invalid; the things that they have created and audit events still name them."""
    for bot in await user_queries.retire_bots(transaction, user_id, project_id, namespace_id):
        await audit_trail.record(transaction, "user_destroyed", author, Entity("User", bot.id, bot.username))


_WITH_THEIR_OWN_EVENT = frozenset({"email", "admin", "password_hash"})
_EMAIL_TAKEN = "Email has already been taken"
_USERNAME_TAKEN = "Username has already been taken"


@attrs.frozen(kw_only=True)
class NewUser:
    """An account to create."""

    username: str
    name: str
    email: str
    confirmed: bool = False
    admin: bool = False
    external: bool = False
    can_create_group: bool = True
    projects_limit: int = 100_000
    password_hash: str | None = None
    bio: str | None = None
    location: str | None = None
    public_email: str | None = None
    website_url: str | None = None
    organization: str | None = None
    job_title: str | None = None
    #: Whether it is a bot, as which the access tokens of a project or a group sign in.
    bot: bool = False
    bot_project_id: int | None = None
    bot_namespace_id: int | None = None


UserChange = Literal["created", "renamed", "restricted", "removed"]


@attrs.frozen(kw_only=True)
class UserEvent:
    """A change of an account. A `removed` account still exists while listeners are called; a `restricted` one
    has been blocked, or is no longer an administrator.

    A `renamed` account has another user name or another name, or both; the event has the new ones.
    """

    kind: UserChange
    user_id: int
    username: str
    name: str
    author: Author
    bot: bool
    #: For a removed account: whether the groups that nobody else owns are removed too.
    hard: bool = False


#: `listener(transaction, event)`, called as part of the change. Raises Conflict if the user name is taken.
UserListener = Callable[[Transaction, UserEvent], Awaitable[None]]

USER_LISTENERS = Key[list[UserListener]]("user_listeners", list)


async def _notify(services: Services, transaction: Transaction, event: UserEvent) -> None:
    for listener in services[USER_LISTENERS]:
        await listener(transaction, event)


async def check_new(transaction: Transaction, user: NewUser) -> None:
    """Raise 400 and 409 like `create`, without creating the account."""
    await _check_attributes(transaction, user)
    if await user_queries.is_username_taken(transaction, user.username):
        raise conflict(_USERNAME_TAKEN)


async def _check_attributes(transaction: Transaction, user: NewUser) -> None:
    if problems := _problems(username=user.username, email=user.email, projects_limit=user.projects_limit):
        raise invalid(problems)
    if await email_queries.users_of(transaction, user.email):
        raise conflict(_EMAIL_TAKEN)


async def create(services: Services, transaction: Transaction, user: NewUser, author: Author) -> int:
    """Create an account and return its id. Raise 400 and 409 in GitLab's words."""
    await _check_attributes(transaction, user)
    seed, token = _static_object_token(services.vault)
    try:
        user_id = await user_queries.create_user(
            transaction,
            **attrs.asdict(user),
            static_object_seed=seed,
            static_object_digest=secrets.digest(token),
            created_by_id=author.id if author.id > 0 else None,
        )
        account = User(user_id, user.username, user.name, user.email, user.admin, user.bot)
        await _notify(services, transaction, _event("created", account, author))
    except Conflict as error:
        raise _conflict(error) from None
    await audit_trail.record(transaction, "user_created", author, account.entity)
    return user_id


async def update(
    services: Services, transaction: Transaction, user_id: int, author: Author, **values: Any
) -> None:
    """Change the attributes that are not None. Raise 404, 400, 409."""
    before = await existing_user(transaction, user_id)
    check_present("name", values["name"])
    if problems := _problems(**{name: values[name] for name in ("username", "email", "projects_limit")}):
        raise invalid(problems)
    if values["email"] is not None:
        if await email_queries.users_of(transaction, values["email"]) - {user_id}:
            raise conflict(_EMAIL_TAKEN)
        await email_queries.remove_as_secondary(transaction, user_id, values["email"])
    try:
        await user_queries.update_user(transaction, user_id, **values)
        after = attrs.evolve(
            before, username=values["username"] or before.username, name=values["name"] or before.name
        )
        if after != before:
            await _notify(services, transaction, _event("renamed", after, author))
    except Conflict as error:
        raise _conflict(error) from None
    if before.admin and values["admin"] is False:
        await _notify(services, transaction, _event("restricted", before, author))
    await _record_changes(transaction, author, before, values)


def _event(kind: UserChange, user: User, author: Author) -> UserEvent:
    return UserEvent(
        kind=kind, user_id=user.id, username=user.username, name=user.name, author=author, bot=user.bot
    )


async def _record_changes(
    transaction: Transaction, author: Author, before: User, values: Mapping[str, Any]
) -> None:
    """Record a separate event for each change that affects access to the account, and one for all other
    changes."""
    entity = attrs.evolve(before, username=values["username"] or before.username).entity
    for name, title in (("email", "email address"), ("admin", "admin status")):
        old, new = getattr(before, name), values[name]
        if new is not None and new != old:
            event_type, change = f"user_{title.replace(' ', '_')}_updated", {"from": old, "to": new}
            await audit_trail.record(transaction, event_type, author, entity, change=title, **change)
    if values["password_hash"] is not None:
        await audit_trail.record(transaction, "user_password_updated", author, entity)
    others = sorted(name for name in values if name not in _WITH_THEIR_OWN_EVENT and values[name] is not None)
    if others:
        await audit_trail.record(transaction, "user_updated", author, entity, names=", ".join(others))


async def delete(
    services: Services, transaction: Transaction, user_id: int, author: Author, *, hard: bool = False
) -> None:
    """Remove the account and the data that listeners keep for it; with `hard`, also the groups that nobody
    else owns. Raise 404, and 409 if there are such groups."""
    user = await existing_user(transaction, user_id)
    await _notify(services, transaction, attrs.evolve(_event("removed", user, author), hard=hard))
    if user.bot:
        await retire_bots(transaction, author, user_id=user_id)
        return
    await user_queries.delete_user(transaction, user_id)
    await audit_trail.record(transaction, "user_destroyed", author, user.entity)


async def set_state(
    services: Services,
    transaction: Transaction,
    user_id: int,
    state: Literal["active", "blocked"],
    author: Author,
) -> bool:
    """Block or unblock an account. Return whether that was a change. Raise 404."""
    user = await existing_user(transaction, user_id)
    changed = await user_queries.set_state(transaction, user_id, state)
    if changed:
        if state == "blocked":
            await _notify(services, transaction, _event("restricted", user, author))
        event_type = "user_blocked" if state == "blocked" else "user_unblocked"
        await audit_trail.record(transaction, event_type, author, user.entity)
    return changed


async def new_static_object_token(
    transaction: Transaction, vault: Vault, user_id: int, author: Author
) -> str:
    """Give the user a new static-object token; the old one becomes invalid."""
    user = await existing_user(transaction, user_id)
    seed, token = _static_object_token(vault)
    await user_queries.set_static_object_token(transaction, user_id, seed, secrets.digest(token))
    await audit_trail.record(transaction, "static_object_token_rotated", author, user.entity)
    return token


def _static_object_token(vault: Vault) -> tuple[bytes, str]:
    seed = os.urandom(20)
    return seed, vault.derived_token(secrets.STATIC_OBJECT_TOKEN, seed)


def _problems(*, username: str | None, email: str | None, projects_limit: int | None) -> dict[str, list[str]]:
    problems = {}
    if email is not None and not is_address(email):
        problems["email"] = ["is invalid"]
    if username is not None and (problem := path_rules.problem_with(username)):
        problems["username"] = [problem]
    if projects_limit is not None and not 0 <= projects_limit <= MAX_INTEGER:
        problems["projects_limit"] = ["is not included in the list"]
    return problems


def _conflict(error: Conflict) -> ApiError:
    return conflict(_EMAIL_TAKEN if error.constraint == "users_email" else _USERNAME_TAKEN)


#: The preset token may do everything, also with another user's rights (`Sudo`).
PRESET_SCOPES = ["api", "sudo"]


async def ensure_administrator(services: Services, token: str) -> None:
    """Create `root` if it does not exist; a preset `token` replaces the one that was preset before."""
    async with services.database.transaction() as transaction:
        await user_queries.hold_start(transaction)
        user = await user_queries.find_user_by_username(transaction, "root")
        if user is None:
            new = NewUser(
                username="root", name="Administrator", email="root@localhost", confirmed=True, admin=True
            )
            user_id = await create(services, transaction, new, SYSTEM)
        else:
            user_id = user.id
        if not token:
            return
        changed = await user_queries.replace_preset_token(
            transaction, user_id, secrets.digest(token), PRESET_SCOPES
        )
        if changed is not None:
            root = Entity("User", user_id, "root")
            await audit_trail.record(
                transaction, "personal_access_token_created", SYSTEM, root, token_id=changed
            )


def preset_token(services: Services, fresh: Settings) -> Change:
    """Return a change that replaces the preset token in a running server."""

    async def change() -> None:
        await ensure_administrator(services, fresh.root_token)

    return change
