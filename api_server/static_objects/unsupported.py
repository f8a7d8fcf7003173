"""Parameters of archives that GitLab knows and this service has no use for (`web/unsupported.py`)."""

import attrs

from api_server.web.params import CommaList


@attrs.frozen(kw_only=True)
class OfArchives:
    """What is left out of an archive."""

    include_lfs_blobs: bool | None = None
    exclude_paths: CommaList[str] | None = None
