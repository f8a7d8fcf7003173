"""Parameters of runners that GitLab knows and this service has no use for (`web/unsupported.py`). Those that runners
send themselves are not here: they would be refused work for them."""

import attrs


@attrs.frozen(kw_only=True)
class OfRunnerLists:
    """Filters of lists."""

    version_prefix: str | None = None
