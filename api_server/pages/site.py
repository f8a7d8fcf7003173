"""All pages, joined to the application."""

from aiohttp import web

from api_server.pages import below_projects, groups, home, named, page, queries, sessions, sign_in
from api_server.pages.account import active_sessions, emails, invites, password, passwords, profile, tokens
from api_server.pages.admin import repository_settings
from api_server.pages.projects import commits, files, refs, releases
from api_server.state.queue import QUEUE
from api_server.static_objects.access import SIGNED_IN_USER
from api_server.web.context import DATABASE

#: In the order in which their paths are tried.
PAGES = [
    home.pages,
    profile.pages,
    password.pages,
    tokens.pages,
    active_sessions.pages,
    groups.pages,
    files.pages,
    commits.pages,
    refs.pages,
    releases.pages,
]


def setup(app: web.Application) -> None:
    app[SIGNED_IN_USER] = sessions.signed_in_user
    page.setup(app)
    below_projects.setup(app)
    sign_in.setup(app)
    invites.setup(app)
    emails.setup(app)
    passwords.setup(app)
    repository_settings.setup(app)
    for pages in PAGES:
        pages.register(app)

    async def delete_expired_sessions() -> None:
        async with app[DATABASE].transaction() as transaction:
            await queries.delete_expired_sessions(transaction)

    app[QUEUE].add_periodic("delete_expired_sessions", "41 4 * * *", delete_expired_sessions)


def setup_named(app: web.Application) -> None:
    """What all other routes have left over."""
    named.pages.register(app)
