"""How many pipelines are made and planned, in this process."""

from aiohttp import web
from cachetools import TTLCache

from api_server.expressions import Allowance
from api_server.settings import Settings
from api_server.web.rate_limits import WINDOW, RateLimiter
from common.concurrency import ConcurrencyLimiter

#: Files that are planned at a time, those of one project, and the seconds that others wait for their turn.
PLANNED_AT_A_TIME = 2
PLANNED_FOR_ONE = 1
PLANNING_PATIENCE = 30
#: Different regular expressions and path patterns in one file, and the seconds of the processor's time that they may
#: take; and those of all files of one project together, which begin anew each minute.
EXPRESSIONS = 1000
EXPRESSION_SECONDS = 2.0
EXPRESSION_SECONDS_A_MINUTE = 10.0


class Limits:
    """How many pipelines are made and files tried out in a minute, and planned at a time, in this process."""

    def __init__(self, settings: Settings) -> None:
        self.rate = RateLimiter("pipelines", lambda: settings.pipeline_rate_limit)
        self.lint = RateLimiter("lint", lambda: settings.lint_rate_limit)
        self._expressions: TTLCache[int, Allowance] = TTLCache(maxsize=10_000, ttl=WINDOW)
        self.planning = ConcurrencyLimiter(PLANNED_AT_A_TIME, PLANNED_FOR_ONE, patience=PLANNING_PATIENCE)

    def expressions(self, project_id: int) -> Allowance:
        """What the regular expressions and path patterns of a file of the project may cost."""
        within = self._expressions.get(project_id)
        if within is None:
            within = self._expressions[project_id] = Allowance(EXPRESSION_SECONDS_A_MINUTE)
        return Allowance(EXPRESSION_SECONDS, EXPRESSIONS, within)

    def forget(self) -> None:
        """Nobody has made or tried out any."""
        self.rate.forget()
        self.lint.forget()
        self._expressions.clear()


LIMITS = web.AppKey("pipeline_limits", Limits)
