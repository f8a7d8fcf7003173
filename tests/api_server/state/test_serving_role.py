"""The tables belong to one role and are served by another, which cannot change the audit trail."""

import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import psycopg2
import pytest
from click.testing import CliRunner

from api_server.audit import chain
from api_server.state.errors import UnsuitableDatabase
from api_server.state.migrate import migrate
from forgelet.command_line import forgelet
from forgelet.local.embedded_postgres import Cluster
from tests.support.ci import ONE_JOB, ci_project, eventually
from tests.support.database_roles import Roles, as_role, with_another_role
from tests.support.forge import Forge, running_forge
from tests.support.invitations import invite, new_address
from tests.support.runner import a_runner


def run_migrate(url: str, *arguments: str):
    environment = {"FORGELET_API_DATABASE_URL": url, "FORGELET_API_DATA_DIR": "."}
    return CliRunner().invoke(forgelet, ["migrate", *arguments], env=environment)


@pytest.fixture
def roles(postgres: Cluster, new_database: Callable[[], str]) -> Roles:
    return with_another_role(postgres, new_database())


@pytest.fixture
async def served(roles: Roles, tmp_path: Path) -> AsyncIterator[Forge]:
    """A server whose role owns nothing."""
    granted = run_migrate(roles.owner, "--grant-to", roles.name)
    assert granted.exit_code == 0, granted
    migrate(roles.serving)  # as the server does when it starts
    async with running_forge(roles.serving, tmp_path) as forge:
        yield forge


async def test_everything_works_for_a_role_that_owns_nothing(served: Forge, roles: Roles) -> None:
    project = await ci_project(served)
    pipeline = await project.pipeline(ONE_JOB)
    job = await (await a_runner(served, project_id=project.id)).job()
    await job.log(b"hello\n")
    await job.finish()
    owner = await served.user("owner")
    group = await served.group(owner)
    await served.project(owner, namespace_id=group["id"])
    assert (await invite(owner.api, f"/groups/{group['id']}", email=new_address())).body == {
        "status": "success"
    }
    assert (await served.root.put("/application/settings", {"default_projects_limit": 7})).status == 200
    assert (await served.root.delete(f"{project.url}/pipelines/{pipeline['id']}")).status == 204
    assert (await owner.api.delete(f"/groups/{group['id']}")).status == 202
    assert (await served.root.delete(f"/projects/{project.id}")).status == 202

    async def is_done() -> bool:
        return not await served.database.value(
            "SELECT EXISTS (SELECT FROM procrastinate_jobs WHERE status <> 'failed')"
        )

    await eventually(is_done)
    assert await served.database.value("SELECT count(*) FROM procrastinate_jobs") == 0, "no task has failed"
    events = (await served.root.get("/audit_events?per_page=100")).body
    assert {"project_created", "project_destroyed", "group_destroyed", "user_created"} <= {
        event["details"]["event_name"] for event in events
    }
    async with served.database.transaction() as transaction:
        await transaction.value("SELECT make_audit_partitions(%(now)s, 9)")
    verdict = await chain.verify(served.database)
    assert (verdict.problem, verdict.head.position) == (None, len(events))


ATTEMPTS = (
    "UPDATE audit_events SET author_name = 'mallory'",
    "DELETE FROM audit_events",
    "TRUNCATE audit_events",
    "ALTER TABLE audit_events DISABLE TRIGGER USER",
    "DROP TABLE audit_events",
    "SET session_replication_role = replica",
    "DELETE FROM audit_events_past",
    "TRUNCATE audit_events_future",
    "DROP TABLE audit_events_future",
    "UPDATE audit_chain SET hash = ''",
    "DELETE FROM audit_chain",
    "TRUNCATE audit_chain",
    "INSERT INTO audit_chain VALUES (99, 99, 'now', '', '')",
    "CREATE FUNCTION audit_event_line() RETURNS text LANGUAGE sql RETURN ''",
    "DELETE FROM _yoyo_migration",
    "TRUNCATE users",
)


async def test_the_trail_cannot_be_changed_by_it(roles: Roles) -> None:
    assert run_migrate(roles.owner, "--grant-to", roles.name).exit_code == 0
    possible = []
    for attempt in ATTEMPTS:
        with as_role(roles.serving) as cursor:
            try:
                cursor.execute(attempt)
            except psycopg2.errors.InsufficientPrivilege:
                continue
            possible.append(attempt)
    assert possible == []


def test_a_schema_that_is_behind_is_one_sentence(roles: Roles, tmp_path: Path) -> None:
    run_migrate(roles.owner, "--grant-to", roles.name)
    with as_role(roles.owner) as cursor:
        cursor.execute("COMMENT ON FUNCTION iso8601(timestamptz) IS 'of another version'")
    arguments = ["--database-url", roles.serving, "--data-dir", str(tmp_path)]
    ended = subprocess.run(
        [sys.executable, "-m", "api_server", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (
        2,
        "Error: The database is not of this version's schema, and its role may not change it:"
        " run `forgelet migrate` as the role that owns the tables\n",
    )
    refused = run_migrate(roles.serving)
    assert (refused.exit_code, refused.stderr.count("\n")) == (2, 1)
    assert run_migrate(roles.owner).exit_code == 0
    migrate(roles.serving)


def test_an_empty_database_of_somebody_else_is_one_sentence(roles: Roles) -> None:
    with as_role(roles.owner) as cursor:
        cursor.execute(
            "DROP SCHEMA public CASCADE; CREATE SCHEMA public; GRANT USAGE ON SCHEMA public TO PUBLIC"
        )
    with pytest.raises(UnsuitableDatabase, match="as the role that owns the tables"):
        migrate(roles.serving)


def test_a_database_of_a_later_version_is_refused(roles: Roles) -> None:
    with as_role(roles.owner) as cursor:
        cursor.execute(
            "INSERT INTO _yoyo_migration (migration_hash, migration_id, applied_at_utc)"
            " VALUES ('x', '9999_the_future', now())"
        )
    with pytest.raises(UnsuitableDatabase, match="newer than this program, it has 9999_the_future"):
        migrate(roles.owner)


def test_a_role_that_is_not_there_is_one_sentence(roles: Roles) -> None:
    refused = run_migrate(roles.owner, "--grant-to", "nobody_at_all")
    assert (refused.exit_code, refused.stderr) == (2, 'Error: role "nobody_at_all" does not exist\n')
