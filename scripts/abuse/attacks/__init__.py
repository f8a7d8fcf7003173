"""The attacks: each of the coroutines in `ATTACKS` goes on until it is cancelled.

An attack counts what it is answered in the Counter that it is given, by words such as `200`, `503` or `cut`.
"""

import functools
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

from scripts.abuse import inputs
from scripts.abuse.attacks import (
    archives,
    artifacts,
    bodies,
    connections,
    edge,
    fetching,
    mail,
    pipelines,
    reading,
)
from scripts.abuse.place import Place

Attack = Callable[[Place, "Counter[str]"], Coroutine[Any, Any, None]]

ATTACKS: dict[str, Attack] = {
    "large-files": reading.large_files,
    "slow-readers": reading.slow_readers,
    "large-changes": reading.large_changes,
    "git-bomb": reading.git_bomb,
    "silent-fetches": fetching.silent_fetches,
    "unread-clones": fetching.unread_clones,
    "delta-bomb": fetching.delta_bomb,
    "idle-connections": connections.idle_connections,
    "unread-answers": connections.unread_answers,
    "bodies-of-strangers": bodies.bodies_of_strangers,
    "gzip-bombs": bodies.gzip_bombs,
    "pipeline-bomb": pipelines.pipeline_bomb,
    "abandoned-archives": archives.abandoned_archives,
    "archives-of-a-bomb": archives.archives_of_a_bomb,
    "artifact-members": artifacts.artifact_members,
    "invitations": mail.invitations,
    "uncollapsed": edge.uncollapsed,
    "unawaited-archives": edge.unawaited_archives,
    **{name: functools.partial(inputs.attack, name) for name in inputs.INPUTS},
}
