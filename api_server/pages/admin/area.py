"""All pages of administrators, in the order in which their paths are tried."""

from api_server.pages.admin import (
    audit_events,
    background_tasks,
    edges,
    outgoing,
    overview,
    people,
    projects,
    repository_settings,
    runners,
    settings,
)

PAGES = (
    overview.pages,
    background_tasks.pages,
    people.pages,
    runners.pages,
    projects.pages,
    outgoing.pages,
    edges.pages,
    audit_events.pages,
    settings.pages,
    repository_settings.pages,
)
