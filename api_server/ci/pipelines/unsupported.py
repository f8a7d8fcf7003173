"""Parameters of pipelines that GitLab knows and this service has no use for (`web/unsupported.py`)."""

from typing import Any

import attrs

from api_server.web.unsupported import REFUSED


@attrs.frozen(kw_only=True)
class OfNewPipelines:
    """Where one is made."""

    inputs: dict[str, Any] | None = attrs.field(default=None, metadata=REFUSED)
