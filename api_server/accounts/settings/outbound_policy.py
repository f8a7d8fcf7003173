"""Which addresses the service may call, out of the operator's and the administrators' settings."""

from api_server.accounts.settings.values import current
from api_server.outbound.client import PolicySource
from api_server.outbound.destinations import MIRROR_SCHEMES, parse_destination
from api_server.outbound.policy import AllowList, Policy
from api_server.web.context import SETTINGS, App


def outbound_policy(app: App) -> PolicySource:
    """Gives what both settings allow together at the moment of the call."""

    async def policy() -> Policy:
        operator, instance = app[SETTINGS], await current(app)
        return Policy(
            instance=parse_destination(operator.base_url, MIRROR_SCHEMES),
            allow_local_requests=operator.allow_local_requests
            or instance.allow_local_requests_from_web_hooks_and_services,
            deny_all_but_allowed=instance.deny_all_requests_except_allowed,
            allow_list=AllowList.parse(instance.outbound_local_requests_whitelist),
        )

    return policy
