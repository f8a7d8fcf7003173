"""All pages, joined to the application."""

from aiohttp import web

from api_server.pages import api_docs, below_projects, groups, home, named, page, queries, sessions, sign_in
from api_server.pages.account import active_sessions, emails, invites, password, passwords, profile, tokens
from api_server.pages.admin import area
from api_server.pages.ci import artifacts, job_actions, jobs, pipelines
from api_server.pages.merge_requests import actions as merge_request_actions
from api_server.pages.merge_requests import merge_requests
from api_server.pages.projects import commits, files, refs, releases
from api_server.state.queue import QUEUE
from api_server.static_objects.access import SIGNED_IN_USER
from api_server.web.context import DATABASE

#: In the order in which their paths are tried.
PAGES = [
    home.pages,
    api_docs.pages,
    profile.pages,
    password.pages,
    tokens.pages,
    active_sessions.pages,
    *area.PAGES,
    groups.pages,
    files.pages,
    commits.pages,
    refs.pages,
    releases.pages,
    pipelines.pages,
    jobs.pages,
    job_actions.pages,
    artifacts.pages,
    merge_requests.pages,
    merge_request_actions.pages,
]


def setup(app: web.Application) -> None:
    app[SIGNED_IN_USER] = sessions.signed_in_user
    page.setup(app)
    api_docs.setup(app)
    below_projects.setup(app)
    sign_in.setup(app)
    invites.setup(app)
    emails.setup(app)
    password.setup(app)
    passwords.setup(app)
    for pages in PAGES:
        pages.register(app)

    async def delete_expired_sessions() -> None:
        async with app[DATABASE].transaction() as transaction:
            await queries.delete_expired_sessions(transaction)

    app[QUEUE].add_periodic("delete_expired_sessions", "41 4 * * *", delete_expired_sessions)


def setup_named(app: web.Application) -> None:
    """What all other routes have left over."""
    named.pages.register(app)
