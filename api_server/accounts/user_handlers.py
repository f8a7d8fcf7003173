"""`/user` and `/users`, and the further e-mail addresses below them (supporting resources)."""

import asyncio
import datetime
from typing import Any

import attrs
from aiohttp import web

from api_server.accounts import email_queries, emails, passwords, user_queries, users
from api_server.accounts.instance_settings import current
from api_server.accounts.passwords import problem_with
from api_server.accounts.users import existing_user
from api_server.services import Services
from api_server.web import context
from api_server.web.answers import json_text, json_value, no_content
from api_server.web.auth import READ_USER_SCOPES, Actor
from api_server.web.errors import bad_parameters, forbidden, invalid, not_found
from api_server.web.pagination import Paginated, paginated, requested_page
from api_server.web.params import Name, Url
from api_server.web.routes import ADMINISTRATOR, SIGNED_IN, Routes

routes = Routes()


#: Filters that are ignored for others, as in GitLab.
_FOR_ADMINISTRATORS = {"admins", "created_after", "created_before"}


@attrs.frozen(kw_only=True)
class ListUsers(Paginated):
    username: str | None = None
    search: str | None = None
    active: bool = False
    blocked: bool = False
    humans: bool = False
    exclude_humans: bool = False
    without_project_bots: bool = False
    exclude_active: bool = False
    exclude_external: bool = False
    admins: bool = False
    external: bool = False
    created_after: datetime.datetime | None = None
    created_before: datetime.datetime | None = None


@attrs.frozen(kw_only=True)
class UserId:
    id: int


@attrs.frozen(kw_only=True)
class DeleteUser(UserId):
    hard_delete: bool = False


@attrs.frozen(kw_only=True)
class Profile:
    """The attributes of a user that can be set on creation and later."""

    password: Name | None = None
    admin: bool | None = None
    external: bool | None = None
    can_create_group: bool | None = None
    projects_limit: int | None = None
    bio: Name | None = None
    location: Name | None = None
    public_email: Name | None = None
    website_url: Url | None = None
    organization: Name | None = None
    job_title: Name | None = None


@attrs.frozen(kw_only=True)
class CreateUser(Profile):
    email: Name = attrs.field(metadata={"present": True})
    username: Name = attrs.field(metadata={"present": True})
    name: Name = attrs.field(metadata={"present": True})
    reset_password: bool = False
    force_random_password: bool = False
    skip_confirmation: bool = False


@attrs.frozen(kw_only=True)
class UpdateUser(Profile):
    id: int
    email: Name | None = None
    username: Name | None = None
    name: Name | None = None


@routes.get("/user", access=SIGNED_IN, scopes=READ_USER_SCOPES, answers="200 UserWithAdmin | CurrentUser")
async def show_current_user(services: Services, actor: Actor) -> web.Response:
    """Show the caller, with private fields."""
    view: user_queries.View = "user_for_administrators" if actor.admin else "own_user"
    return json_text(await user_queries.show_user(services.database, actor.user_id, view))


@routes.get("/users", access=SIGNED_IN, scopes=READ_USER_SCOPES, answers="200 [UserWithAdmin | UserBasic]")
async def list_users(
    request: web.Request, services: Services, actor: Actor, params: ListUsers
) -> web.Response:
    """List all users, including bots. Only administrators see more than their names."""
    page = requested_page(params, user_queries.LISTING)
    names = user_queries.NO_FILTERS.keys() - (set() if actor.admin else _FOR_ADMINISTRATORS)
    list_page = await user_queries.list_users(
        services.database,
        page,
        for_administrator=actor.admin,
        search=params.search,
        **{name: getattr(params, name) for name in names},
        bots=False if params.humans or params.without_project_bots else params.exclude_humans or None,
    )
    return await paginated(request, page, list_page)


@routes.get(
    "/users/{id}", access=SIGNED_IN, scopes=READ_USER_SCOPES, answers="200 UserDetailsWithAdmin | User"
)
async def show_user(services: Services, actor: Actor, params: UserId) -> web.Response:
    view: user_queries.View = "user_in_detail" if actor.admin else "user"
    entity = await user_queries.show_user_if_there(services.database, params.id, view)
    if entity is None:
        raise not_found("User")
    return json_text(entity)


@routes.post("/users", access=ADMINISTRATOR, answers="201 UserWithAdmin")
async def create_user(services: Services, actor: Actor, params: CreateUser) -> web.Response:
    """Create an account with a namespace for its projects. Without `skip_confirmation` its address is
    unconfirmed; without `projects_limit` the limit is that of the instance's settings; `reset_password` mails
    a link to set the password."""
    if params.password is None and not (params.reset_password or params.force_random_password):
        raise bad_parameters(
            "password, reset_password, force_random_password are missing, at least one parameter must be provided"
        )
    profile: dict[str, Any] = {"projects_limit": (await current(services)).default_projects_limit}
    profile |= {
        name: value for name, value in (await _profile(services, params)).items() if value is not None
    }
    async with services.database.transaction() as transaction:
        user_id = await users.create(
            services,
            transaction,
            users.NewUser(
                username=params.username,
                name=params.name,
                email=params.email,
                confirmed=params.skip_confirmation,
                **profile,
            ),
            actor.author,
        )
        if params.reset_password:
            await passwords.queue_mail(transaction, user_id, is_new=True)
        entity = await user_queries.show_user(transaction, user_id, "user_for_administrators")
    return json_text(entity, status=201)


@routes.put("/users/{id}", access=ADMINISTRATOR, revokes="user:{id}", answers="200 UserWithAdmin")
async def update_user(services: Services, actor: Actor, params: UpdateUser) -> web.Response:
    profile = await _profile(services, params)
    async with services.database.transaction() as transaction:
        await users.update(
            services,
            transaction,
            params.id,
            actor.author,
            username=params.username,
            name=params.name,
            email=params.email,
            **profile,
        )
        entity = await user_queries.show_user(transaction, params.id, "user_for_administrators")
    return json_text(entity)


@routes.delete("/users/{id}", access=ADMINISTRATOR, revokes="user:{id}", answers="204")
async def delete_user(services: Services, actor: Actor, params: DeleteUser) -> web.Response:
    """Delete the account with its own namespace and the projects in it. What the user has created elsewhere
    is kept. Answer 409 for the only Owner of a group; with `hard_delete` such groups are deleted too."""
    if params.id == actor.user_id:
        raise forbidden("You cannot delete yourself")
    async with services.database.transaction() as transaction:
        await users.delete(services, transaction, params.id, actor.author, hard=params.hard_delete)
    return no_content()


@routes.post("/users/{id}/block", access=ADMINISTRATOR, revokes="user:{id}", answers="201 boolean | null")
async def block_user(services: Services, actor: Actor, params: UserId) -> web.Response:
    """Block a user, whose tokens become unusable. As in GitLab, the body is null if the user was blocked
    already."""
    if params.id == actor.user_id:
        raise forbidden("You cannot block yourself")
    async with services.database.transaction() as transaction:
        changed = await users.set_state(services, transaction, params.id, "blocked", actor.author)
    return json_value(changed or None, status=201)


@routes.post("/users/{id}/unblock", access=ADMINISTRATOR, answers="201 boolean")
async def unblock_user(services: Services, actor: Actor, params: UserId) -> web.Response:
    async with services.database.transaction() as transaction:
        changed = await users.set_state(services, transaction, params.id, "active", actor.author)
    return json_value(changed, status=201)


@routes.post("/user/static_object_token/rotate", access=SIGNED_IN, answers="201 StaticObjectToken")
async def rotate_static_object_token(services: Services, actor: Actor) -> web.Response:
    """Give the caller a new static-object token, which is shown once; links with the old one stop working at
    once (decision D9)."""
    async with services.database.transaction() as transaction:
        token = await users.new_static_object_token(transaction, services.vault, actor.user_id, actor.author)
    return json_value({"token": token}, status=201)


async def _profile(services: Services, params: Profile) -> dict[str, Any]:
    values = {field.name: getattr(params, field.name) for field in attrs.fields(Profile)}
    password = values.pop("password")
    if password is not None and (problem := problem_with(password)):
        raise invalid({"password": [problem]})
    # Hashing takes some 50 ms of processor time.
    hash_password = services.vault.hash_password
    hashed = await asyncio.to_thread(hash_password, password) if password else None
    return values | {"password_hash": hashed}


@attrs.frozen(kw_only=True)
class EmailId:
    email_id: int


@attrs.frozen(kw_only=True)
class AddEmail:
    email: Name = attrs.field(metadata={"present": True})


@attrs.frozen(kw_only=True)
class ListEmailsOf(Paginated):
    id: int


@attrs.frozen(kw_only=True)
class AddEmailTo(AddEmail):
    id: int
    skip_confirmation: bool = False


@attrs.frozen(kw_only=True)
class EmailIdOf(EmailId):
    id: int


@routes.get("/user/emails", access=SIGNED_IN, scopes=READ_USER_SCOPES, answers="200 [Email]")
async def list_own_emails(request: web.Request, actor: Actor, params: Paginated) -> web.Response:
    return await _listed_emails(request, params, actor.user_id)


@routes.get("/user/emails/{email_id}", access=SIGNED_IN, scopes=READ_USER_SCOPES, answers="200 Email")
async def show_own_email(services: Services, actor: Actor, params: EmailId) -> web.Response:
    entity = await email_queries.show_email(services.database, params.email_id, actor.user_id)
    if entity is None:
        raise not_found("Email")
    return json_text(entity)


@routes.post("/user/emails", access=SIGNED_IN, answers="201 Email")
async def add_own_email(services: Services, actor: Actor, params: AddEmail) -> web.Response:
    """Add an address for the caller. It is unconfirmed until the caller follows the link that is mailed to
    it."""
    return await _added_email(services, actor, actor.user_id, params.email, confirmed=False)


@routes.delete("/user/emails/{email_id}", access=SIGNED_IN, answers="204")
async def remove_own_email(services: Services, actor: Actor, params: EmailId) -> web.Response:
    return await _removed_email(services, actor, params.email_id, actor.user_id)


@routes.get("/users/{id}/emails", access=ADMINISTRATOR, scopes=READ_USER_SCOPES, answers="200 [Email]")
async def list_emails(request: web.Request, services: Services, params: ListEmailsOf) -> web.Response:
    await existing_user(services.database, params.id)
    return await _listed_emails(request, params, params.id)


@routes.post("/users/{id}/emails", access=ADMINISTRATOR, answers="201 Email")
async def add_email(services: Services, actor: Actor, params: AddEmailTo) -> web.Response:
    """Add an address for a user. With `skip_confirmation` it is confirmed at once and no mail is sent."""
    return await _added_email(services, actor, params.id, params.email, confirmed=params.skip_confirmation)


@routes.delete("/users/{id}/emails/{email_id}", access=ADMINISTRATOR, answers="204")
async def remove_email(services: Services, actor: Actor, params: EmailIdOf) -> web.Response:
    await existing_user(services.database, params.id)
    return await _removed_email(services, actor, params.email_id, params.id)


async def _listed_emails(request: web.Request, params: Paginated, user_id: int) -> web.Response:
    page = requested_page(params, email_queries.LISTING, default_sort="asc")
    return await paginated(
        request, page, await email_queries.list_emails(context.services(request).database, page, user_id)
    )


async def _added_email(
    services: Services, actor: Actor, user_id: int, email: str, *, confirmed: bool
) -> web.Response:
    async with services.database.transaction() as transaction:
        user = await existing_user(transaction, user_id)
        added = await emails.add(
            transaction, user, email, actor.author, services.settings, confirmed=confirmed
        )
    return json_text(added, status=201)


async def _removed_email(services: Services, actor: Actor, email_id: int, user_id: int) -> web.Response:
    async with services.database.transaction() as transaction:
        await emails.remove(transaction, email_id, user_id, actor.author)
    return no_content()
