"""Parameters of protected branches that GitLab knows and this service has no use for (`web/unsupported.py`)."""

from typing import Any, Literal

import attrs


@attrs.frozen(kw_only=True)
class OfChangedProtection:
    """Who may unprotect: Maintainers, always."""

    allowed_to_unprotect: list[dict[str, Any]] | None = None


@attrs.frozen(kw_only=True)
class OfProtection(OfChangedProtection):
    """Where a branch is protected."""

    unprotect_access_level: Literal[30, 40, 60] | None = None
