"""Parameters of artifacts that GitLab knows and this service has no use for (`web/unsupported.py`)."""

import attrs


@attrs.frozen(kw_only=True)
class OfArtifactsByRef:
    """Which pipeline of the ref has them: the newest that succeeded."""

    search_recent_successful_pipelines: bool | None = None
