"""How many pipelines are made and planned, in this process."""

from aiohttp import web

from api_server.settings import Settings
from api_server.web.rate_limit import RateLimiter
from common.concurrency import ConcurrencyLimiter

#: Files that are planned at a time, those of one project, and the seconds that others wait for their turn.
PLANNED_AT_A_TIME = 2
PLANNED_FOR_ONE = 1
PLANNING_PATIENCE = 30


class Limits:
    """How many pipelines are made and files tried out in a minute, and planned at a time, in this process."""

    def __init__(self, settings: Settings) -> None:
        self.rate = RateLimiter("pipelines", lambda: settings.pipeline_rate_limit)
        self.lint = RateLimiter("lint", lambda: settings.lint_rate_limit)
        self.planning = ConcurrencyLimiter(PLANNED_AT_A_TIME, PLANNED_FOR_ONE, patience=PLANNING_PATIENCE)

    def forget(self) -> None:
        """Nobody has made or tried out any."""
        self.rate.forget()
        self.lint.forget()


LIMITS = web.AppKey("pipeline_limits", Limits)
