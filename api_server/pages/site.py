"""All pages, joined to the application."""

from aiohttp import web

from api_server.pages import (
    account,
    api_docs,
    commits,
    editing_files,
    files,
    finding,
    folders,
    gitlab_addresses,
    mail_links,
    merge_request_forms,
    merge_requests,
    namespaces,
    new_projects,
    page,
    projects,
    queries,
    ref_forms,
    routes,
    sessions,
    sign_in,
)
from api_server.pages.admin import audit_events, instance_lists, operating, overview, settings
from api_server.pages.ci import jobs, pipelines, schedules
from api_server.pages.settings import audit_events as settings_audit_events
from api_server.pages.settings import ci_cd, general, members, repository, status_checks
from api_server.pages.text import rendering
from api_server.static_objects.access import SIGNED_IN_USER
from api_server.web.context import SERVICES

#: The pages of each module, in the order in which their paths are tried.
PAGES = [
    sign_in.pages,
    mail_links.pages,
    new_projects.pages,
    finding.pages,
    namespaces.pages,
    api_docs.pages,
    account.pages,
    overview.pages,
    operating.pages,
    instance_lists.pages,
    audit_events.pages,
    settings.pages,
    editing_files.pages,
    ref_forms.pages,
    files.pages,
    folders.pages,
    commits.pages,
    projects.pages,
    pipelines.pages,
    schedules.pages,
    jobs.pages,
    merge_request_forms.pages,
    merge_requests.pages,
    settings_audit_events.pages,
    members.pages,
    general.pages,
    repository.pages,
    status_checks.pages,
    ci_cd.pages,
    gitlab_addresses.pages,
]


def setup(app: web.Application) -> None:
    services = app[SERVICES]
    services[SIGNED_IN_USER] = sessions.signed_in_user
    page.setup(app)
    api_docs.setup(app)
    routes.setup(app)
    sign_in.setup(services)
    mail_links.setup(services)
    account.setup(services)
    rendering.setup(services)
    folders.setup(services)
    for pages in PAGES:
        pages.register(app)

    async def delete_expired_sessions() -> None:
        async with services.database.transaction() as transaction:
            await queries.delete_expired_sessions(transaction)
            await queries.delete_old_forms(transaction)

    services.queue.add_periodic("delete_expired_sessions", "41 4 * * *", delete_expired_sessions)


def setup_named(app: web.Application) -> None:
    """Add the pages for paths that no other route has taken."""
    namespaces.named_pages.register(app)
