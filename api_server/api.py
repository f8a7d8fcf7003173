"""Everything below /api/v4: the routes of each resource, in the order in which their paths are tried."""

from api_server.areas.audit.handlers import routes as audit
from api_server.areas.invitations.handlers import routes as invitations
from api_server.areas.jobs.allowed_agents import routes as allowed_agents
from api_server.areas.jobs.artifacts.handlers import routes as artifacts
from api_server.areas.jobs.artifacts.uploads import routes as artifact_uploads
from api_server.areas.jobs.handlers import routes as jobs
from api_server.areas.jobs.logs.answer import routes as logs
from api_server.areas.jobs.logs.handlers import routes as log_appends
from api_server.areas.jobs.outcome import routes as outcomes
from api_server.areas.mirrors.handlers import routes as remote_mirrors
from api_server.areas.static_objects.api import routes as archives
from api_server.areas.status_checks.delivery_handlers import routes as status_check_deliveries
from api_server.areas.status_checks.handlers import routes as status_checks
from api_server.areas.status_checks.merge_request_handlers import routes as merge_request_checks
from api_server.platform.agents.handlers import routes as agents
from api_server.platform.branches.handlers import routes as branches
from api_server.platform.emails.handlers import routes as emails
from api_server.platform.groups.handlers import routes as groups
from api_server.platform.member_roles.handlers import routes as member_roles
from api_server.platform.members.handlers import routes as members
from api_server.platform.members.overviews import routes as member_overviews
from api_server.platform.merge_requests.contents import routes as merge_request_contents
from api_server.platform.merge_requests.handlers import routes as merge_requests
from api_server.platform.pipelines.handlers import routes as pipelines
from api_server.platform.pipelines.lint import routes as ci_lint
from api_server.platform.projects.handlers import routes as projects
from api_server.platform.repository.browsing import routes as browsing
from api_server.platform.repository.comparing import routes as comparing
from api_server.platform.repository.handlers import routes as repository
from api_server.platform.runners.handlers import routes as runners
from api_server.platform.runners.registration import routes as runner_registration
from api_server.platform.runners.requests import routes as job_requests
from api_server.platform.settings.handlers import routes as settings_routes
from api_server.platform.tokens.handlers import routes as tokens
from api_server.platform.users.handlers import routes as users
from api_server.platform.variables.handlers import routes as variables
from api_server.platform.version import routes as version

ROUTES = [
    users,
    emails,
    tokens,
    groups,
    projects,
    members,
    member_roles,
    member_overviews,
    invitations,
    branches,
    repository,
    browsing,
    comparing,
    archives,
    settings_routes,
    audit,
    merge_requests,
    merge_request_contents,
    status_checks,
    merge_request_checks,
    status_check_deliveries,
    pipelines,
    ci_lint,
    variables,
    agents,
    artifacts,
    logs,
    jobs,
    allowed_agents,
    runner_registration,
    runners,
    job_requests,
    log_appends,
    outcomes,
    artifact_uploads,
    remote_mirrors,
    version,
]
