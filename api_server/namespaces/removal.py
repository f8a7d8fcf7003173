"""Removal of projects, alone or with the group or the user's namespace that contains them.

The project's bots and running jobs are removed with it, edges are notified, and an audit event is recorded. A
task removes its pipelines and jobs, of which there can be a million, and the data on disk.
"""

from api_server.accounts import users
from api_server.namespaces import namespace_queries
from api_server.namespaces import removal_queries as queries
from api_server.outbound import edges
from api_server.state import audit_trail
from api_server.state.audit_trail import Author, Entity
from api_server.state.database import Database, Transaction
from api_server.state.errors import NotFound
from api_server.state.queue import enqueue

#: The task that removes a project's pipelines, repository, archives and stored objects; `app.py` registers
#: it.
REMOVE_DATA = "remove_project_data"
#: The numbers of rows that one transaction of the task removes.
STEP_JOBS = 1_000
STEP_PIPELINES = 100


async def remove_project(transaction: Transaction, project_id: int, author: Author) -> None:
    """Remove a project with everything that belongs to it. Raise NotFound if another request has just removed
    it."""
    await queries.lock_project(transaction, project_id)
    await queries.end_jobs(transaction, project_id)
    await users.retire_bots(transaction, author, project_id=project_id)
    full_path = await queries.remove_project(transaction, project_id)
    if full_path is None:
        raise NotFound
    await edges.changed(transaction, edges.project_key(project_id))
    await enqueue(transaction, REMOVE_DATA, project_id=project_id)
    await audit_trail.record(
        transaction, "project_destroyed", author, Entity("Project", project_id, full_path)
    )


async def remove_pipelines(database: Database, project_id: int) -> None:
    """Remove the pipelines and jobs of a removed project, in steps: a task that is interrupted continues with
    the rest."""
    more = True
    while more:
        async with database.transaction() as transaction:
            removed = await queries.remove_jobs(transaction, project_id, STEP_PIPELINES, STEP_JOBS)
            more = (
                removed == STEP_JOBS
                or await queries.remove_pipelines(transaction, project_id, STEP_PIPELINES) > 0
            )


async def remove_namespace(transaction: Transaction, namespace_id: int, author: Author) -> None:
    """Remove a namespace with the groups and projects below it, each with an audit event. Raise NotFound."""
    await namespace_queries.lock(transaction, namespace_id)
    for project_id in await queries.projects_below(transaction, namespace_id):
        await remove_project(transaction, project_id, author)
    await users.retire_bots(transaction, author, namespace_id=namespace_id)
    for group in await queries.remove_with_groups_below(transaction, namespace_id):
        entity = Entity("Group", group.id, group.full_path)
        await audit_trail.record(transaction, "group_destroyed", author, entity)
