"""Runners: making them."""

import asyncio

import click
from aiohttp import web

from api_server.ci.runners import changes
from api_server.namespaces import namespace_queries, project_queries
from api_server.web.context import DATABASE
from common.mistakes import Mistake
from forgelet.acting import application, author, changing
from forgelet.frame import Group
from forgelet.instance import Instance
from forgelet.output import answer


@click.group(cls=Group)
def runner() -> None:
    """Runners: the programs that execute jobs."""


@runner.command()
@click.option("--description", default="", help="What people see of it.")
@click.option(
    "--tag", "tags", multiple=True, help="Jobs with this tag are its own; may be given several times."
)
@click.option("--tagged-only", is_flag=True, help="It takes no jobs without tags.")
@click.option("--project", "project_path", metavar="PATH", help="It serves this project only.")
@click.option("--group", "group_path", metavar="PATH", help="It serves the projects of this group only.")
@click.pass_obj
def create(
    instance: Instance,
    description: str,
    tags: tuple[str, ...],
    project_path: str | None,
    group_path: str | None,
    *,
    tagged_only: bool,
) -> None:
    """Makes a runner, of the whole instance unless something else is said, and prints its token: this once.

    The token is what a runner program is given: gitlab-runner register --url URL --token TOKEN.
    """
    if project_path and group_path:
        raise Mistake("--project and --group contradict each other: give one of them")

    async def run() -> tuple[int, str]:
        async with application(instance) as app:
            new = changes.NewRunner(
                description=description,
                tag_list=tags,
                run_untagged=not tagged_only,
                project_id=await _project(app, project_path) if project_path else None,
                namespace_id=await _group(app, group_path) if group_path else None,
            )
            async with changing(app) as transaction:
                return await changes.create(transaction, new, author())

    runner_id, token = asyncio.run(run())
    answer({"id": runner_id, "token": token}, token)


async def _project(app: web.Application, path: str) -> int:
    found = await project_queries.find_project(
        app[DATABASE], project_id=None, path=path, user_id=None, admin=True, job_project_id=None
    )
    if found is None:
        raise Mistake(f"There is no project {path}")
    return found.id


async def _group(app: web.Application, path: str) -> int:
    found = await namespace_queries.find_group(app[DATABASE], group_id=None, path=path, user_id=0, admin=True)
    if found is None:
        raise Mistake(f"There is no group {path}")
    return found.id
