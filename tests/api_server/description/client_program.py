"""A program that uses a client generated from the description by openapi-python-client, and prints what it received."""

import json
import sys
from typing import Any

import attrs
from generated import AuthenticatedClient
from generated.api.external_status_checks import (
    create_project_external_status_check,
    delete_project_external_status_check,
    list_project_external_status_checks,
)
from generated.api.invitations import (
    create_project_invitation,
    delete_project_invitation,
    list_project_invitations,
)
from generated.api.jobs import list_project_jobs
from generated.api.projects import create_project, delete_project, get_project, list_projects
from generated.api.remote_mirrors import (
    create_project_remote_mirror,
    delete_project_remote_mirror,
    list_project_remote_mirrors,
    sync_project_remote_mirror,
)
from generated.models import (
    CreateProjectBody,
    CreateProjectExternalStatusCheckBody,
    CreateProjectInvitationBody,
    CreateProjectInvitationBodyAccessLevel,
    CreateProjectRemoteMirrorBody,
    ListProjectJobsScopeItem,
)


def main(url: str, token: str, project: str) -> None:
    client = AuthenticatedClient(
        base_url=url,
        token=token,
        prefix="",
        auth_header_name="PRIVATE-TOKEN",
        raise_on_unexpected_status=True,
    )
    with client:
        seen = {
            "projects": projects(client),
            "jobs": [
                attrs.asdict(job, recurse=False)["status"]
                for job in list_project_jobs.sync(
                    project,
                    client=client,
                    scope=[ListProjectJobsScopeItem.FAILED, ListProjectJobsScopeItem.MANUAL],
                )
            ],
            "checks": checks(client, project),
            "mirrors": mirrors(client, project),
            "invitations": invitations(client, project),
        }
    json.dump(seen, sys.stdout, default=str)


def projects(client: Any) -> list[Any]:
    made = create_project.sync(client=client, body=CreateProjectBody(name="By a generated client"))
    shown = get_project.sync(str(made.id), client=client)
    named = [one.name for one in list_projects.sync(client=client, owned=True, per_page=100)]
    gone = delete_project.sync_detailed(str(made.id), client=client)
    missing = get_project.sync_detailed(str(made.id), client=client)
    return [shown.name, made.name in named, gone.status_code, missing.status_code, missing.parsed.message]


def checks(client: Any, project: str) -> list[Any]:
    body = CreateProjectExternalStatusCheckBody(
        name="Licences", external_url="https://checks.example/licences"
    )
    made = create_project_external_status_check.sync(project, client=client, body=body)
    again = create_project_external_status_check.sync_detailed(project, client=client, body=body)
    named = [one.name for one in list_project_external_status_checks.sync(project, client=client)]
    gone = delete_project_external_status_check.sync_detailed(project, made.id, client=client)
    return [named, again.status_code, gone.status_code]


def mirrors(client: Any, project: str) -> list[Any]:
    body = CreateProjectRemoteMirrorBody(url="https://user:secret@mirror.example/app.git", enabled=False)
    made = create_project_remote_mirror.sync(project, client=client, body=body)
    urls = [one.url for one in list_project_remote_mirrors.sync(project, client=client)]
    refused = sync_project_remote_mirror.sync_detailed(project, made.id, client=client)
    gone = delete_project_remote_mirror.sync_detailed(project, made.id, client=client)
    return [urls, refused.status_code, gone.status_code]


def invitations(client: Any, project: str) -> list[Any]:
    body = CreateProjectInvitationBody(
        email=["new@people.example"], access_level=CreateProjectInvitationBodyAccessLevel.DEVELOPER
    )
    made = create_project_invitation.sync(project, client=client, body=body)
    asked = [one.invite_email for one in list_project_invitations.sync(project, client=client)]
    gone = delete_project_invitation.sync_detailed(project, "new@people.example", client=client)
    left = list_project_invitations.sync(project, client=client)
    return [made.status, asked, gone.status_code, left]


if __name__ == "__main__":
    main(*sys.argv[1:])
