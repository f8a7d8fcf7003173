"""The resources below /api/v4, in the order in which the paths of their routes are tried."""

from api_server.accounts.instance_handlers import routes as settings_routes
from api_server.accounts.instance_handlers import version_routes as version
from api_server.accounts.member_role_handlers import routes as member_roles
from api_server.accounts.token_handlers import routes as tokens
from api_server.accounts.user_handlers import routes as users
from api_server.audit.handlers import routes as audit
from api_server.ci.agents.handlers import routes as agents
from api_server.ci.commit_statuses.handlers import routes as commit_statuses
from api_server.ci.jobs.artifact_handlers import routes as artifacts
from api_server.ci.jobs.handlers import routes as jobs
from api_server.ci.jobs.report_handlers import routes as reports
from api_server.ci.pipelines.handlers import routes as pipelines
from api_server.ci.runners.handlers import routes as runners
from api_server.ci.runners.job_handlers import routes as runner_jobs
from api_server.ci.schedules.handlers import routes as schedules
from api_server.ci.triggers.handlers import routes as triggers
from api_server.ci.variables.handlers import routes as variables
from api_server.code.commit_handlers import routes as commits
from api_server.code.protected_ref_handlers import routes as protected_refs
from api_server.code.repository_handlers import routes as repository
from api_server.description.handlers import routes as description
from api_server.invitations.handlers import routes as invitations
from api_server.merge_requests.handlers import routes as merge_requests
from api_server.merge_requests.list_handlers import routes as merge_request_lists
from api_server.merge_requests.note_handlers import routes as notes
from api_server.merge_requests.version_handlers import routes as merge_request_versions
from api_server.mirrors.handlers import routes as remote_mirrors
from api_server.namespaces.access_token_handlers import routes as access_tokens
from api_server.namespaces.group_handlers import routes as groups
from api_server.namespaces.job_token_scope_handlers import routes as job_token_scope
from api_server.namespaces.member_handlers import overview_routes as member_overviews
from api_server.namespaces.member_handlers import routes as members
from api_server.namespaces.project_handlers import routes as projects
from api_server.releases.handlers import routes as releases
from api_server.static_objects.handlers import routes as archives
from api_server.status_checks.handlers import routes as status_checks

ROUTES = [
    users,
    tokens,
    groups,
    projects,
    job_token_scope,
    access_tokens,
    members,
    member_roles,
    member_overviews,
    invitations,
    protected_refs,
    repository,
    commits,
    archives,
    settings_routes,
    audit,
    merge_request_lists,
    merge_requests,
    notes,
    merge_request_versions,
    status_checks,
    pipelines,
    triggers,
    commit_statuses,
    schedules,
    variables,
    agents,
    artifacts,
    reports,
    jobs,
    runners,
    runner_jobs,
    remote_mirrors,
    releases,
    version,
    description,
]
