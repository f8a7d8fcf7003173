"""Parameters of tokens that GitLab knows and this service has no use for (`web/unsupported.py`)."""

import datetime

import attrs


@attrs.frozen(kw_only=True)
class OfTokenLists:
    """Filters of lists."""

    created_after: datetime.datetime | None = None
    created_before: datetime.datetime | None = None
    last_used_after: datetime.datetime | None = None
    last_used_before: datetime.datetime | None = None
    expires_after: datetime.date | None = None
    expires_before: datetime.date | None = None
