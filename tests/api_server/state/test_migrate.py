"""Databases that are migrated, restarted, or served by a role with few rights."""

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

import psycopg2
import pytest
from click.testing import CliRunner

from api_server.audit import chain
from api_server.ci.runners.job_handlers import PENDING_JOBS
from api_server.state import database
from api_server.state.errors import UnsuitableDatabase
from api_server.state.migrate import (
    _BASELINE,
    _check_server,
    known_migrations,
    make_older_schema,
    migrate,
    planned,
    unsuitable_database,
)
from api_server.web.context import SERVICES
from common.config_errors import own_command
from forgelet.command_line import forgelet
from forgelet.local.embedded_postgres import Cluster, autocommitting, temporary_cluster
from scripts.harness.processes import descendants
from tests.support import pgbouncer
from tests.support.ci import ONE_JOB, CiProject, ci_project
from tests.support.database_roles import Roles, empty_database, with_another_role
from tests.support.forge import Forge, new_name, running_forge
from tests.support.invitations import invite, new_address
from tests.support.ports import free_port
from tests.support.runner import a_runner
from tests.support.waiting import until

#: Fails, as on a full disk, at the creation of this table or function.
FULL_DISK = """
    CREATE FUNCTION full_disk() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN
        IF EXISTS (SELECT FROM pg_event_trigger_ddl_commands() WHERE object_identity LIKE '%{}%') THEN
            RAISE EXCEPTION 'No space left on device' USING ERRCODE = 'disk_full';
        END IF;
    END $$;
    CREATE EVENT TRIGGER full_disk ON ddl_command_end EXECUTE FUNCTION full_disk()
"""
SCHEMA = """
    SELECT string_agg(table_name || '.' || column_name || ' ' || data_type, ', ' ORDER BY table_name, column_name)
    FROM information_schema.columns WHERE table_schema = 'public' AND table_name !~ '^audit_events_'
"""


#: The migrations of the last commit before the baseline.
BEFORE_BASELINE = """
    0001_accounts_and_projects 0010_list_indices 0011_lfs_objects 0011_push_options 0012_more_list_indices
    0013_lfs_sizes 0020_pipelines_and_jobs 0021_ci_variables 0025_job_logs 0025_unlocked_artifacts
    0026_sizes_of_artifacts 0028_pipeline_hierarchies 0030_merge_requests 0031_status_checks
    0032_merge_on_skipped_pipeline 0035_deliveries_in_order 0036_mergeability_of_two_heads 0040_remote_mirrors
    0041_mirrored_lfs_objects 0050_audit_trail 0051_invitations 0052_member_roles 0053_audit_clock
    0057_letter_counts 0058_audit_owner 0060_job_token_scope 0061_secret_key_check 0071_hand_outs 0072_edges
    0073_keys_of_lfs_objects 0080_scopes_of_status_checks 0081_who_gives_variables 0082_messages_of_tags
    0090_merge_request_pipelines 0091_pipeline_triggers 0092_pipeline_schedules 0100_commit_statuses
    0101_instance_variables 0102_artifacts_by_project 0103_running_jobs 0104_unfinished_pipelines 0110_ways_to_merge
    0111_assignees_and_reviewers 0112_merge_request_lists 0120_notes 0140_protected_tags 0141_releases
    0142_merge_commits 0150_bots 0151_profiles_and_sign_ins 0152_password_resets 0153_search
    0190_where_sessions_began 0210_lists_of_administrators 0220_operations 0231_notices_of_rights
    0235_edges_that_are_listed 0240_removal_in_steps 0250_jobs_that_wait 0260_sessions_of_accounts
    0270_kept_settings 0280_submitted_forms
"""
NAME_MIGRATIONS = """
    TRUNCATE _yoyo_migration;
    INSERT INTO _yoyo_migration (migration_hash, migration_id, applied_at_utc)
    SELECT encode(sha256(id::bytea), 'hex'), id, now() FROM unnest(%s) id
"""


@pytest.fixture
def empty(postgres: Cluster) -> Iterator[tuple[str, str]]:
    """The URLs of an empty database for its owner and for the superuser."""
    with empty_database(postgres) as name:
        yield postgres.url(name), postgres.url(name, "postgres")


def _schema(url: str) -> str:
    with autocommitting(url) as cursor:
        cursor.execute(SCHEMA)
        return str(cursor.fetchone()[0])


@pytest.mark.parametrize("made", ["_yoyo_version", "merge_requests"])
def test_after_an_interruption_the_next_start_goes_on(
    empty: tuple[str, str], new_database: Callable[[], str], made: str
) -> None:
    url, superuser_url = empty
    with autocommitting(superuser_url) as superuser:
        superuser.execute(FULL_DISK.format(made))
        with pytest.raises(psycopg2.errors.DiskFull):
            migrate(url)
        superuser.execute("DROP EVENT TRIGGER full_disk; DROP FUNCTION full_disk()")
    migrate(url)
    assert _schema(url) == _schema(new_database())


def test_the_url_may_have_a_name_with_a_space_and_several_hosts(
    postgres: Cluster, empty: tuple[str, str], new_database: Callable[[], str]
) -> None:
    parts = urlsplit(empty[0])
    name, folder = parts.path[1:], quote(parse_qs(parts.query)["host"][0], safe="")
    user, _, _ = parts.netloc.rpartition("@")
    url = f"{parts.scheme}://{user}@{folder},{folder}/the%20{name}?target_session_attrs=read-write"
    with autocommitting(postgres.url("postgres", "postgres")) as superuser:
        superuser.execute(f'ALTER DATABASE "{name}" RENAME TO "the {name}"')
        migrate(url)
        schema = _schema(url)
        superuser.execute(f'ALTER DATABASE "the {name}" RENAME TO "{name}"')
    assert schema == _schema(new_database())


def test_each_migration_is_one_line_of_the_log(
    empty: tuple[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    migrate(empty[0])
    applied = [record.getMessage() for record in caplog.records if record.name == "yoyo.migrations"]
    assert applied == [f"Applying {name}" for name in sorted(known_migrations())]


@pytest.fixture
def before_baseline(empty: tuple[str, str]) -> str:
    """The URL of a database of the last commit before the baseline."""
    url, _ = empty
    make_older_schema(url, _BASELINE)
    with autocommitting(url) as cursor:
        cursor.execute(NAME_MIGRATIONS, (BEFORE_BASELINE.split(),))
    return url


def test_a_database_of_the_last_commit_before_the_baseline_is_taken_over(
    before_baseline: str, new_database: Callable[[], str]
) -> None:
    url, fresh = before_baseline, new_database()
    with autocommitting(url) as cursor:
        cursor.execute("UPDATE application_settings SET values = '{\"kept\": true}'")
    assert planned(url) == [
        "take over the schema of the last commit before version 1.0.0",
        *(f"apply {name}" for name in sorted(known_migrations() - set(_BASELINE))),
        "replace the functions",
    ]
    migrate(url)
    assert planned(url) == []
    assert _migrations(url) == _migrations(fresh)
    assert _schema(url) == _schema(fresh)
    with autocommitting(url) as cursor:
        cursor.execute("SELECT values FROM application_settings")
        assert cursor.fetchone() == ({"kept": True},)


def _migrations(url: str) -> list[Any]:
    with autocommitting(url) as cursor:
        cursor.execute(
            "SELECT migration_hash, migration_id, applied_at_utc IS NULL FROM _yoyo_migration ORDER BY 2"
        )
        return cursor.fetchall()


OF_EARLIER_COMMIT = (
    "The database is of a commit before version 1.0.0, and not of the last one, which this version takes over: run the"
    " commit whose migrations end with 0280_submitted_forms on it first, or use an empty database"
)


@pytest.mark.parametrize(
    "change",
    [
        "DELETE FROM _yoyo_migration WHERE migration_id = '0280_submitted_forms'",
        "ALTER TABLE users DROP COLUMN created_by_id",  # the first version of 0270_kept_settings did not create it
    ],
)
def test_a_database_of_an_earlier_commit_is_refused(before_baseline: str, change: str) -> None:
    with autocommitting(before_baseline) as cursor:
        cursor.execute(change)
    assert _refusals(before_baseline) == {OF_EARLIER_COMMIT}


def _refusals(url: str) -> set[str]:
    """Return the messages of the check and of the migration of the database."""
    said = set()
    for start in planned, migrate:
        with pytest.raises(UnsuitableDatabase) as refused, unsuitable_database():
            start(url)
        said.add(refused.value.message)
    return said


@pytest.fixture(params=["directly", "pooled"])
def way(request: pytest.FixtureRequest, empty: tuple[str, str]) -> Iterator[str]:
    """The URLs of an empty database: its own, and the one through a PgBouncer that pools transactions."""
    if request.param == "directly":
        yield empty[0]
        return
    if not pgbouncer.program():
        pytest.skip("PgBouncer is not installed")
    with pgbouncer.running(empty[0]) as url:
        yield url


def test_those_that_start_at_once_migrate_once(
    way: str, empty: tuple[str, str], new_database: Callable[[], str]
) -> None:
    url, problems = way, []

    def start() -> None:
        try:
            migrate(url)
        except Exception as problem:
            problems.append(problem)

    threads = [threading.Thread(target=start) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    assert _schema(empty[0]) == _schema(new_database())


def test_looking_at_what_is_to_be_done_leaves_sessions_as_they_were(way: str) -> None:
    """A pooler gives the sessions to other clients."""
    assert planned(way)
    with autocommitting(way) as cursor:
        cursor.execute("CREATE TABLE made_afterwards ()")


FAST, IMMEDIATE, KILLED = signal.SIGINT, signal.SIGQUIT, signal.SIGKILL


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A cluster that only this test uses."""
    with temporary_cluster() as started:
        migrate(started.url())
        yield started


@pytest.fixture
async def project(
    cluster: Cluster, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[CiProject]:
    monkeypatch.setattr(database, "TIMEOUT", 0.2)
    folder = tmp_path_factory.getbasetemp() / "restarts"  # the database belongs to this folder's key
    quick = {"database_connect_timeout": 1, "database_statement_timeout": 1, "database_pool": 3}
    async with running_forge(cluster.url(), folder, **quick) as forge:
        yield await ci_project(forge)


IN_TRANSACTIONS = (
    "SELECT count(*) FROM pg_stat_activity WHERE datname = 'forgelet' AND state LIKE 'idle in %'"
)


def ask(cluster: Cluster, statement: str) -> Any:
    with autocommitting(cluster.url("postgres", "postgres")) as superuser:
        superuser.execute(statement)
        return superuser.fetchone()[0] if superuser.description else None


def end(cluster: Cluster, how: signal.Signals) -> None:
    """End the server with all its processes, since a killed server leaves some behind."""
    server = cluster._server
    assert server is not None
    below = descendants(server.process.pid)
    server.process.send_signal(how)
    server.process.wait(20)
    for pid in below if how is KILLED else ():
        _send(pid, KILLED)


def _send(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


async def restart(cluster: Cluster, how: signal.Signals, tmp_path: Path) -> None:
    await asyncio.to_thread(ask, cluster, "CHECKPOINT")  # not durable, and therefore quick
    await asyncio.to_thread(end, cluster, how)
    await asyncio.to_thread(cluster.start, tmp_path / "server.log")


async def answers(forge: Forge, project: CiProject) -> bool:
    return (await project.api.get(project.url)).status == 200


@pytest.mark.parametrize("how", [FAST, IMMEDIATE, KILLED])
async def test_everything_works_again_by_itself(
    cluster: Cluster, project: CiProject, tmp_path: Path, how: signal.Signals
) -> None:
    forge = project.forge
    runner = await a_runner(forge, project_id=project.id)
    waiting = asyncio.create_task(runner.poll(last_update="1"))
    await until(lambda: forge.server.app[SERVICES][PENDING_JOBS]._waiting)
    await restart(cluster, how, tmp_path)
    await until(lambda: answers(forge, project))
    # The queue creates a commit's pipeline, and a notification wakes the runner's request.
    await project.commit("build: {script: echo}", message="Build")
    async with asyncio.timeout(20):  # the poll itself would take 30
        assert (await waiting).status == 201
    readiness = await until(lambda: _ready(forge))
    assert readiness["status"] == "ok"
    pool = forge.database._connections
    await until(lambda: (len(pool._used), pool._capacity._value) == (0, 3))


async def _ready(forge: Forge) -> Any:
    answer = await forge.anonymous.get(f"{forge.base}/-/readiness")
    return answer.body if answer.body["status"] == "ok" else None


async def test_a_frozen_one_is_given_up_in_time_and_taken_up_again(
    cluster: Cluster, project: CiProject
) -> None:
    forge, server = project.forge, cluster._server
    assert server is not None
    pids = [server.process.pid, *descendants(server.process.pid)]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        async with asyncio.timeout(20):
            found = await asyncio.gather(
                *(project.api.get(f"{project.url}/jobs") for _ in range(8)),
                *(project.api.post(f"{project.url}/variables", {"key": "A", "value": "1"}) for _ in range(2)),
                *(project.api.get(project.url, timeout=15) for _ in range(2)),
            )
        assert [(answer.status, answer.body) for answer in found] == [
            (503, {"message": "503 Service Unavailable"})
        ] * len(found)
    finally:
        for pid in pids:
            _send(pid, signal.SIGCONT)
    await until(lambda: answers(forge, project))
    pool = forge.database._connections
    await until(lambda: (len(pool._used), pool._capacity._value) == (0, 3))

    async def nothing_left() -> bool:
        return await asyncio.to_thread(ask, cluster, IN_TRANSACTIONS) == 0

    assert await until(nothing_left), "no transaction stays open"


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

    await until(is_done)
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
    "UPDATE audit_events SET author_name = 'mallory'", "DELETE FROM audit_events", "TRUNCATE audit_events",
    "ALTER TABLE audit_events DISABLE TRIGGER USER", "DROP TABLE audit_events",
    "SET session_replication_role = replica", "DELETE FROM audit_events_past", "TRUNCATE audit_events_future",
    "DROP TABLE audit_events_future", "UPDATE audit_chain SET hash = ''", "DELETE FROM audit_chain",
    "TRUNCATE audit_chain", "INSERT INTO audit_chain VALUES (99, 99, 'now', '', '')",
    "CREATE FUNCTION audit_event_line() RETURNS text LANGUAGE sql RETURN ''",
    "DELETE FROM _yoyo_migration", "TRUNCATE users",
)  # fmt: skip


async def test_the_trail_cannot_be_changed_by_it(roles: Roles) -> None:
    assert run_migrate(roles.owner, "--grant-to", roles.name).exit_code == 0
    possible = []
    for attempt in ATTEMPTS:
        with autocommitting(roles.serving) as cursor:
            try:
                cursor.execute(attempt)
            except psycopg2.errors.InsufficientPrivilege:
                continue
            possible.append(attempt)
    assert possible == []


def test_a_schema_that_is_behind_is_one_sentence(roles: Roles, tmp_path: Path) -> None:
    run_migrate(roles.owner, "--grant-to", roles.name)
    with autocommitting(roles.owner) as cursor:
        cursor.execute("COMMENT ON FUNCTION iso8601(timestamptz) IS 'of another version'")
    arguments = ["--port", str(free_port()), "--database-url", roles.serving, "--data-dir", str(tmp_path)]
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
        f" run `{own_command()} migrate` as the role that owns the tables\n",
    )
    refused = run_migrate(roles.serving)
    assert (refused.exit_code, refused.stderr.count("\n")) == (2, 1)
    assert run_migrate(roles.owner).exit_code == 0
    migrate(roles.serving)


NO_SCHEMA = (
    "The role {role} may use no schema of its search_path: run `forgelet migrate --grant-to {role}` as the role that"
    " owns the tables, or name a schema that exists in search_path"
)
LACKS_RIGHTS = (
    "The role of the setting database_url lacks rights (permission denied for table {}): run"
    " `forgelet migrate --grant-to ROLE` as the role that owns the tables"
)
READ_ONLY = (
    "The database is read-only: set default_transaction_read_only to off for the database and its role"
)
EMPTY = "DROP SCHEMA public CASCADE; CREATE SCHEMA public; "
REFUSED = {
    "no right to create in an empty database": (
        EMPTY + "GRANT USAGE ON SCHEMA public TO PUBLIC",
        "The role {role} may not create tables: run GRANT CREATE ON SCHEMA public TO {role} as the owner of the"
        " database, or `forgelet migrate --grant-to {role}` as a role that may create them",
    ),
    "no right to use the empty schema": (EMPTY, NO_SCHEMA),
    "no right to use the schema": ("REVOKE USAGE ON SCHEMA public FROM PUBLIC", NO_SCHEMA),
    "no schema of this name": ("ALTER ROLE {role} SET search_path = nowhere", NO_SCHEMA),
    "no right to read tables": ("", LACKS_RIGHTS.format("_yoyo_migration")),
    "read-only database": ("ALTER DATABASE {database} SET default_transaction_read_only = on", READ_ONLY),
    "read-only role": ("ALTER ROLE {role} SET default_transaction_read_only = on", READ_ONLY),
    "no right to connect": (
        "REVOKE CONNECT ON DATABASE {database} FROM PUBLIC",
        '{unusable}FATAL: permission denied for database "{database}"',
    ),
    "no right to log in": (
        "ALTER ROLE {role} NOLOGIN", '{unusable}FATAL: role "{role}" is not permitted to log in'
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_database_refuses_a_role_is_one_sentence(postgres: Cluster, roles: Roles, name: str) -> None:
    names = {"role": roles.name, "database": urlsplit(roles.owner).path.removeprefix("/")}
    change, sentence = REFUSED[name]
    with autocommitting(postgres.url(names["database"], "postgres")) as superuser:
        superuser.execute(change.format(**names) or "SELECT")
    (said,) = _refusals(roles.serving)
    assert said == sentence.format(**names, unusable=UNUSABLE.format(_socket(postgres)))


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1"])
def test_another_encoding_is_one_sentence(postgres: Cluster, encoding: str) -> None:
    name = new_name("encoded").replace("-", "_")
    with autocommitting(postgres.url()) as owner:
        owner.execute(f"CREATE DATABASE {name} ENCODING '{encoding}' LOCALE 'C' TEMPLATE template0")
        try:
            assert _refusals(postgres.url(name)) == {
                f"The database's encoding is {encoding}, texts need UTF8: make a database with ENCODING 'UTF8'"
            }
        finally:
            owner.execute(f"DROP DATABASE {name}")


def test_a_database_that_is_not_there_is_one_sentence(postgres: Cluster) -> None:
    unusable = UNUSABLE.format(_socket(postgres))
    assert _refusals(postgres.url("nowhere")) == {f'{unusable}FATAL: database "nowhere" does not exist'}


def test_an_old_postgresql_is_one_sentence() -> None:
    with pytest.raises(UnsuitableDatabase) as refused:
        _check_server(140011, None)
    assert refused.value.message == "PostgreSQL 15 or newer is needed, this is 14: upgrade it"


UNUSABLE = (
    'PostgreSQL cannot be used, check the setting database_url: connection to server on socket "{}" failed: '
)


def _socket(postgres: Cluster) -> str:
    query = parse_qs(urlsplit(postgres.url()).query)
    return f"{query['host'][0]}/.s.PGSQL.{query.get('port', ['5432'])[0]}"


def test_a_database_of_a_later_version_is_refused(roles: Roles) -> None:
    with autocommitting(roles.owner) as cursor:
        cursor.execute(
            "INSERT INTO _yoyo_migration (migration_hash, migration_id, applied_at_utc)"
            " VALUES ('x', '9999_the_future', now())"
        )
    with pytest.raises(UnsuitableDatabase, match="newer than this program, it has 9999_the_future"):
        migrate(roles.owner)


def test_a_role_that_is_not_there_is_one_sentence(roles: Roles) -> None:
    refused = run_migrate(roles.owner, "--grant-to", "nobody_at_all")
    assert (refused.exit_code, refused.stderr) == (2, 'Error: role "nobody_at_all" does not exist\n')
