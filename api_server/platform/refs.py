"""What follows when refs of a repository have changed: one list of listeners, called in one transaction.

Whatever moves refs (a push, a file commit, a merge, a new branch) ends in `settle`.
"""

from collections.abc import Awaitable, Callable, Sequence

from aiohttp import web

from api_server.git.push import RefUpdate
from api_server.state.database import Row, Transaction

#: `listener(transaction, project, user_id, updates)`: `project` is the projects row, `user_id` who moved the refs.
#: Runs after git has moved them and before that is acknowledged; it queues what takes time.
RefListener = Callable[[Transaction, Row, int | None, Sequence[RefUpdate]], Awaitable[None]]

REF_LISTENERS: web.AppKey[list[RefListener]] = web.AppKey("ref_listeners", list)
