"""Joins pipelines to the application: the reaction to pushes, and the background work."""

import functools
from typing import Any

from aiohttp import web

from api_server.ci.pipelines import downstream, pushes, transitions
from api_server.ci.pipelines.creation import maker
from api_server.ci.pipelines.limits import LIMITS, Limits
from api_server.ci.pipelines.remote_files import REMOTE_FILES, RemoteFiles
from api_server.code.refs import REF_LISTENERS
from api_server.state.queue import QUEUE
from api_server.web.context import DATABASE, SETTINGS, VAULT


def setup(app: web.Application) -> None:
    app[LIMITS] = Limits(app[SETTINGS])
    app[REMOTE_FILES] = RemoteFiles(app)
    most = app[SETTINGS].git_push_pipeline_limit
    app[REF_LISTENERS].append(functools.partial(pushes.react_to_push, app[VAULT], most))
    queue = app[QUEUE]

    async def create_pushed_pipeline(**pushed: Any) -> None:
        await pushes.create_pipeline(app, **pushed)

    async def start_downstream(job_id: int) -> None:
        await downstream.start(maker(app), job_id)

    async def follow_downstream(job_id: int) -> None:
        await downstream.follow(app[DATABASE], job_id)

    async def cancel_downstream(job_id: int) -> None:
        await downstream.cancel(app[DATABASE], job_id)

    async def follow_forgotten() -> None:
        await downstream.follow_forgotten(app[DATABASE])

    async def start_delayed(job_id: int) -> None:
        async with app[DATABASE].transaction() as transaction:
            await transitions.start_when_due(transaction, job_id)

    async def assign_resource(project_id: int, resource_group: str) -> None:
        async with app[DATABASE].transaction() as transaction:
            await transitions.assign_resource(transaction, project_id, resource_group)

    queue.add(pushes.CREATE_PUSHED_PIPELINE, create_pushed_pipeline, attempts=5)
    queue.add(transitions.START_DOWNSTREAM, start_downstream, attempts=5)
    queue.add(transitions.FOLLOW_DOWNSTREAM, follow_downstream, attempts=5)
    queue.add(transitions.CANCEL_DOWNSTREAM, cancel_downstream, attempts=5)
    queue.add(transitions.START_DELAYED, start_delayed, attempts=5)
    queue.add(transitions.ASSIGN_RESOURCE, assign_resource, attempts=5)
    queue.add_periodic("follow_forgotten_bridges", "* * * * *", follow_forgotten)
