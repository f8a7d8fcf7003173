"""Which addresses the service may call, out of the operator's and the administrators' settings."""

from api_server.accounts.settings.values import InstanceSettings, current
from api_server.outbound.client import PolicySource
from api_server.outbound.destinations import MIRROR_SCHEMES, parse_destination
from api_server.outbound.policy import AllowList, Policy
from api_server.settings import Settings
from api_server.web.context import SETTINGS, App


def outbound_policy(app: App) -> PolicySource:
    """Gives what is allowed at the moment of the call."""

    async def policy() -> Policy:
        return policy_of(app[SETTINGS], await current(app))

    return policy


def policy_of(operator: Settings, instance: InstanceSettings) -> Policy:
    """What both settings allow together."""
    return Policy(
        instance=parse_destination(operator.base_url, MIRROR_SCHEMES),
        allow_local_requests=operator.allow_local_requests
        or instance.allow_local_requests_from_web_hooks_and_services,
        allow_list=AllowList.parse(instance.outbound_local_requests_whitelist),
    )
