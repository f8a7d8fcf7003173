"""All pages of administrators, in the order in which their paths are tried."""

from api_server.pages.admin import (
    audit_events,
    edges,
    outgoing,
    people,
    projects,
    repository_settings,
    runners,
    settings,
)

PAGES = (
    people.pages,
    runners.pages,
    projects.pages,
    outgoing.pages,
    edges.pages,
    audit_events.pages,
    settings.pages,
    repository_settings.pages,
)
