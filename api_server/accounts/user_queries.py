# mypy: disable-error-code="empty-body"
"""Statements about users: people, bots, and the administrator of a starting process."""

from typing import Any, Literal, get_args

import attrs

from api_server.state.audit_trail import Entity
from api_server.state.database import EntityRow, Executor, Transaction
from api_server.state.declarations import statement
from api_server.state.listing import ListPage, ListQuery, Page, Search, entity_statement, read_sql
from api_server.state.statements import Statement

_ENTITIES = read_sql("api_server.accounts")
_ORDERS = {
    "name": "name",
    "username": "username",
    "created_at": "id",  # ids ascend with the date of creation and have an index
    "updated_at": "updated_at",
}
SEARCH = Search(
    "users",
    "username",
    "name",
    "lower(users.public_email) = lower(%(search)s::text)",
    "(%(finds_private)s AND lower(users.email) = lower(%(search)s::text))",
)
_MATCHING = f"""
    SELECT users.* FROM users
    WHERE users.state <> 'deactivated'
        AND (%(username)s::text IS NULL OR lower(users.username) = lower(%(username)s))
        AND (%(bots)s::boolean IS NULL OR users.bot = %(bots)s)
        AND (NOT %(active)s OR users.state = 'active')
        AND (NOT %(blocked)s OR users.state = 'blocked')
        AND (NOT %(exclude_active)s OR users.state = 'blocked') -- the only other state here
        AND (NOT %(admins)s OR users.admin)
        AND (NOT %(external)s OR users.external)
        AND (NOT %(exclude_external)s OR NOT users.external)
        AND (%(created_after)s::timestamptz IS NULL OR users.created_at >= %(created_after)s)
        AND (%(created_before)s::timestamptz IS NULL OR users.created_at <= %(created_before)s)
        AND {SEARCH.condition}
"""
#: The values of the other filters of `_MATCHING` that let every user through.
NO_FILTERS: dict[str, Any] = {
    **dict.fromkeys(("active", "blocked", "exclude_active", "admins", "external", "exclude_external"), False),
    **dict.fromkeys(("username", "created_after", "created_before")),
}
_LISTS = {
    False: ListQuery(_ENTITIES["basic_user"], _MATCHING, _ORDERS),
    True: ListQuery(_ENTITIES["user_for_administrators"], _MATCHING, _ORDERS),
}
LISTING = _LISTS[False]


async def list_users(
    database: Executor,
    page: Page,
    *,
    for_administrator: bool,
    search: str | None,
    bots: bool | None,
    **filters: Any,
) -> ListPage:
    """Return a page of the users: only `bots`, only others, or (None) both. Administrators can also search
    private addresses. `filters` are some of `NO_FILTERS`."""
    return await _LISTS[for_administrator].read(
        database,
        page,
        search=search,
        found=await SEARCH.find(database, search, finds_private=for_administrator),
        bots=bots,
        finds_private=for_administrator,
        **(NO_FILTERS | filters),
    )


#: The views for everybody, for the user, and for administrators after a change and in detail.
View = Literal["user", "own_user", "user_for_administrators", "user_in_detail"]

_SHOW: dict[View, Statement[EntityRow]] = {
    view: entity_statement(
        _ENTITIES[view], "SELECT users.* FROM users WHERE users.id = %(id)s AND users.state <> 'deactivated'"
    )
    for view in get_args(View)
}


async def show_user(database: Executor, user_id: int, view: View) -> str:
    """Return the user's entity. Raise NotFound."""
    return await database.entity(_SHOW[view], id=user_id)


async def show_user_if_there(database: Executor, user_id: int, view: View) -> str | None:
    return await database.entity_if_there(_SHOW[view], id=user_id)


@attrs.frozen
class User:
    """The attributes of an account that pages and changes of its data need."""

    id: int
    username: str
    name: str
    email: str
    admin: bool
    bot: bool

    @property
    def entity(self) -> Entity:
        """The entity to which audit events of this user belong."""
        return Entity(type="User", id=self.id, path=self.username)


_USER = """
    SELECT users.id, users.username, users.name, users.email, users.admin, users.bot FROM users
    WHERE users.state <> 'deactivated'
"""


@statement(f"{_USER} AND users.id = %(user_id)s")
async def find_user(database: Executor, user_id: int) -> User | None: ...


@statement(f"{_USER} AND lower(users.username) = lower(%(username)s)")
async def find_user_by_username(database: Executor, username: str) -> User | None: ...


@statement("""
    SELECT EXISTS (SELECT FROM users WHERE lower(users.username) = lower(%(username)s))
        OR EXISTS (SELECT FROM routes WHERE routes.path = lower(%(username)s) AND NOT routes.moved)
""")
async def is_username_taken(database: Executor, username: str) -> bool:
    """Return whether an account or a group has that name."""


@statement("""
    INSERT INTO users (username, name, email, admin, external, can_create_group, projects_limit, password_hash,
        static_object_seed, static_object_digest, confirmed_at, bio, location, public_email, website_url, organization,
        job_title, bot, bot_project_id, bot_namespace_id, created_by_id, created_at, updated_at)
    VALUES (%(username)s, %(name)s, %(email)s, %(admin)s, %(external)s, %(can_create_group)s, %(projects_limit)s,
        %(password_hash)s, %(static_object_seed)s, %(static_object_digest)s,
        CASE WHEN %(confirmed)s THEN %(now)s::timestamptz END, %(bio)s, %(location)s, %(public_email)s, %(website_url)s,
        %(organization)s, %(job_title)s, %(bot)s, %(bot_project_id)s, %(bot_namespace_id)s,
        %(created_by_id)s, %(now)s, %(now)s)
    RETURNING id
""")
async def create_user(transaction: Transaction, **values: Any) -> int:
    """Create a user and return its id. Raise Conflict on `users_username` or `users_email`."""


@statement("""
    UPDATE users SET
        username = coalesce(%(username)s, username),
        name = coalesce(%(name)s, name),
        email = coalesce(%(email)s, email),
        admin = coalesce(%(admin)s, admin),
        external = coalesce(%(external)s, external),
        can_create_group = coalesce(%(can_create_group)s, can_create_group),
        projects_limit = coalesce(%(projects_limit)s, projects_limit),
        password_hash = coalesce(%(password_hash)s, password_hash),
        bio = coalesce(%(bio)s, bio),
        location = coalesce(%(location)s, location),
        public_email = coalesce(%(public_email)s, public_email),
        website_url = coalesce(%(website_url)s, website_url),
        organization = coalesce(%(organization)s, organization),
        job_title = coalesce(%(job_title)s, job_title),
        updated_at = %(now)s
    WHERE id = %(user_id)s
""")
async def update_user(transaction: Transaction, user_id: int, **values: Any) -> None:
    """Change the attributes that are not None. Raise Conflict like `create_user`."""


@statement("""
    UPDATE users SET state = %(state)s, updated_at = %(now)s WHERE id = %(user_id)s AND state <> %(state)s
""")
async def set_state(transaction: Transaction, user_id: int, state: str) -> bool:
    """Set the state; return whether that was a change."""


@statement("""
    DELETE FROM users WHERE id = %(user_id)s
""")
async def delete_user(transaction: Transaction, user_id: int) -> None: ...


@statement("""
    UPDATE users SET static_object_seed = %(seed)s, static_object_digest = %(digest)s WHERE id = %(user_id)s
""")
async def set_static_object_token(
    transaction: Transaction, user_id: int, seed: bytes, digest: bytes
) -> None: ...


@statement("""
    SELECT users.bot FROM users WHERE users.id = %(user_id)s
""")
async def is_bot(database: Executor, user_id: int) -> bool: ...


@attrs.frozen
class Bot:
    id: int
    username: str


@statement("""
    WITH retired AS (
        UPDATE users SET state = 'deactivated', bot_project_id = NULL, bot_namespace_id = NULL, updated_at = %(now)s
        WHERE users.bot AND users.state <> 'deactivated' AND (users.id = %(user_id)s::bigint
            OR users.bot_project_id = %(project_id)s::bigint
            OR users.bot_namespace_id = ANY (ARRAY(
                SELECT namespaces.id FROM namespaces WHERE namespaces.lineage @> ARRAY[%(namespace_id)s::bigint])))
        RETURNING users.id, users.username
    ), ended AS (
        UPDATE personal_access_tokens SET revoked = true
        WHERE user_id IN (SELECT retired.id FROM retired) AND NOT revoked
    ), left_behind AS (
        DELETE FROM members WHERE members.user_id IN (SELECT retired.id FROM retired)
    )
    SELECT retired.id, retired.username FROM retired ORDER BY retired.id
    """)
async def retire_bots(
    transaction: Transaction, user_id: int | None, project_id: int | None, namespace_id: int | None
) -> list[Bot]:
    """Revoke the bots' tokens, end their memberships, and return the bots. Their rows are kept, because other
    data may refer to them."""


@statement("""
    SELECT users.id, users.username FROM users
    WHERE users.bot AND users.state <> 'deactivated' AND NOT EXISTS (
        SELECT FROM personal_access_tokens tokens
        WHERE tokens.user_id = users.id AND NOT tokens.revoked
            AND NOT has_expired(tokens.expires_at + %(days)s::int, %(now)s))
    ORDER BY users.id LIMIT 1000
    """)
async def bots_without_tokens(database: Executor, days: int) -> list[Bot]:
    """Return at most a thousand bots whose tokens have all been revoked, or have expired `days` days ago."""


@statement("""
    SELECT pg_advisory_xact_lock(4242)
""")
async def hold_start(transaction: Transaction) -> None:
    """Wait until no other process is starting."""


REPLACE_PRESET_TOKEN = """
    WITH ended AS (
        UPDATE personal_access_tokens SET revoked = true
        WHERE user_id = %(user_id)s AND name = 'preset' AND digest <> %(digest)s
    )
    INSERT INTO personal_access_tokens (user_id, name, description, digest, scopes, created_at)
    VALUES (%(user_id)s, 'preset', 'Set by the operator', %(digest)s, %(scopes)s, %(now)s)
    ON CONFLICT (digest) DO UPDATE SET revoked = false WHERE personal_access_tokens.revoked
    RETURNING id
"""


async def replace_preset_token(
    transaction: Transaction, user_id: int, digest: bytes, scopes: list[str]
) -> int | None:
    """Replace the preset token and return the id of the new one, or None if it is valid already."""
    token_id: int | None = await transaction.value(
        REPLACE_PRESET_TOKEN, user_id=user_id, digest=digest, scopes=scopes
    )
    return token_id
