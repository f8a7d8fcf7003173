"""One run of a mirror without a server around it, as tests make it."""

from aiohttp.resolver import ThreadedResolver

from api_server.mirrors.configuration import all_branches
from api_server.mirrors.pushing import Outcome, Selection, Target, update_target
from api_server.outbound.policy import Policy
from tests.api_server.mirrors.repositories import BareRepository
from tests.api_server.mirrors.targets import PASSWORD, USER

EVERYTHING = Selection(all_branches)
KEEP = Selection(all_branches, keep_divergent_refs=True)
LOCAL_ALLOWED = Policy(allow_local_requests=True)


async def mirror(
    source: BareRepository,
    url: str,
    selection: Selection = EVERYTHING,
    *,
    password: str = PASSWORD,
    policy: Policy = LOCAL_ALLOWED,
    time_limit: float = 60,
) -> Outcome:
    """A run of `source` to `url` with the user of the test targets."""
    return await update_target(
        source.path,
        Target(url, USER, password),
        selection,
        policy=policy,
        resolver=ThreadedResolver(),
        time_limit=time_limit,
    )
