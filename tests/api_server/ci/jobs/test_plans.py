"""Lists of a project with 200,000 jobs read only the rows of their page, whatever page it is."""

import contextlib
import re
from typing import Any
from urllib.parse import urlsplit

import psycopg2
import pytest

from api_server.ci.commit_statuses import queries as commit_statuses
from api_server.ci.jobs import queries
from api_server.ci.pipelines import queries as pipelines
from api_server.ci.runners import job_queries
from api_server.state.database import connect
from api_server.state.listing import MAX_COUNTED, Page
from api_server.state.statements import Statement
from scripts.bench.filling import fill_jobs as fill
from tests.support.ci import CREATE_RUNNER
from tests.support.plans import rows_read, scans, undone

PAGE = 20

PROJECTS = """
    WITH owner AS (
        INSERT INTO users (username, name, email, static_object_seed, static_object_digest)
        VALUES ('alice', 'Alice', 'alice@example.org', '', '') RETURNING id
    ), namespace AS (
        INSERT INTO namespaces (kind, owner_id, name, path, full_path, full_name, visibility)
        SELECT 'user', owner.id, 'Alice', 'alice', 'alice', 'Alice', 'public' FROM owner RETURNING id
    )
    INSERT INTO projects (namespace_id, name, path, full_path, visibility)
    SELECT namespace.id, path, path, 'alice/' || path, 'public'
    FROM namespace, unnest(ARRAY['busy', 'newer']) AS path
    RETURNING id, (SELECT owner.id FROM owner) AS user_id
"""


@pytest.fixture(scope="module")
async def full(new_database, postgres_url):
    """A database with a project of 200,000 jobs, which are older than the jobs of another one, and its id."""
    url = new_database()
    async with connect(url, base_url="http://localhost", statement_timeout=120) as database:
        async with database.transaction() as transaction:
            project, newer = await transaction.rows(PROJECTS)
            await fill(transaction, project_id=project.id, user_id=project.user_id, runner_id=None)
            await fill(transaction, project_id=newer.id, user_id=project.user_id, runner_id=None, jobs=10_000)
        _command(url, "VACUUM (ANALYZE)")  # as PostgreSQL does automatically after a while
        yield database, project.id
    # its pages need not be written when the server stops
    _command(postgres_url, f"DROP DATABASE {urlsplit(url).path.removeprefix('/')}")


def _command(url: str, sql: str) -> None:
    with contextlib.closing(psycopg2.connect(url)) as connection:
        connection.autocommit = True
        connection.cursor().execute(sql)


async def prepared_scans(
    database, statement: Statement, generic: bool, **parameters: Any
) -> list[dict[str, Any]]:
    """Return the nodes that read jobs when the prepared statement runs, with a generic plan or one for the values."""
    async with database.transaction() as transaction:
        mode = "force_generic_plan" if generic else "force_custom_plan"
        await transaction.row(f"SET LOCAL plan_cache_mode = {mode}")
        await transaction.row("DEALLOCATE ALL")
        await transaction.row(re.sub("^PREPARE [^ ]+", "PREPARE tried", statement.prepare))
        execute = re.sub(".*EXECUTE [^( ]+", "EXECUTE tried", statement.execute)
        found = await scans(transaction, "jobs", execute, **parameters)
        await transaction.row("DEALLOCATE ALL")
    return found


def page_parameters(page: Page) -> dict[str, Any]:
    return {**page.values, "archived_before": None}


@pytest.mark.parametrize("generic", [True, False], ids=["generic", "custom"])
@pytest.mark.parametrize("after", [None, 100_000], ids=["page 1", "page 5,000"])
@pytest.mark.parametrize(
    "scope", [None, ["failed"], ["failed", "canceled", "running"], ["success"], ["manual"]]
)
async def test_a_keyset_page_of_a_projects_jobs(full, scope, after, generic):
    database, project_id = full
    listing = queries.JOBS_OF_PROJECT if scope is None else queries.JOBS_OF_PROJECT_IN_SCOPE
    found = await prepared_scans(
        database,
        listing.statement(Page(PAGE, after=after, counted=False)),
        generic,
        project_id=project_id,
        **page_parameters(Page(PAGE, after=after, counted=False)),
        **({} if scope is None else {"scope": scope}),
    )
    assert rows_read(found) <= (PAGE + 1) * max(1, len(scope or [])), found


@pytest.mark.parametrize("generic", [True, False], ids=["generic", "custom"])
@pytest.mark.parametrize("scope", [None, ["failed"], ["success"]])
async def test_the_first_offset_page_stops_counting(full, scope, generic):
    """Decision D3: counting stops at 10,001 rows; the page itself reads its rows."""
    database, project_id = full
    listing = queries.JOBS_OF_PROJECT if scope is None else queries.JOBS_OF_PROJECT_IN_SCOPE
    found = await prepared_scans(
        database,
        listing.statement(Page(PAGE)),
        generic,
        project_id=project_id,
        **page_parameters(Page(PAGE)),
        **({} if scope is None else {"scope": scope}),
    )
    counting = [node for node in found if rows_read([node]) > PAGE + 1]
    assert len(counting) == 1
    # if nearly all rows of the table count, reading the table in its own order is as good as the index
    assert rows_read(counting) <= 1.01 * MAX_COUNTED
    assert rows_read([node for node in found if node not in counting]) <= PAGE + 1


@pytest.mark.parametrize("generic", [True, False], ids=["generic", "custom"])
async def test_a_pipelines_jobs_are_read_from_that_pipeline_only(full, generic):
    database, _ = full
    pipeline_id = await database.value("SELECT id FROM pipelines ORDER BY id OFFSET 1000 LIMIT 1")
    found = await prepared_scans(
        database,
        queries.JOBS_OF_PIPELINE.statement(Page(PAGE, counted=False)),
        generic,
        pipeline_id=pipeline_id,
        kind="build",
        include_retried=False,
        scope=None,
        **page_parameters(Page(PAGE, counted=False)),
    )
    assert rows_read(found) <= PAGE + 1


@pytest.mark.parametrize("generic", [True, False], ids=["generic", "custom"])
async def test_a_commits_statuses_are_read_from_its_pipelines_only(full, generic):
    database, project_id = full
    sha = await database.value("SELECT sha FROM pipelines ORDER BY id OFFSET 1000 LIMIT 1")
    jobs = await database.value(
        "SELECT count(*) FROM jobs JOIN pipelines ON pipelines.id = jobs.pipeline_id WHERE sha = %(sha)s",
        sha=sha,
    )
    found = await prepared_scans(
        database,
        commit_statuses.LISTING.statement(Page(PAGE)),
        generic,
        project_id=project_id,
        sha=sha,
        **dict.fromkeys(("pipeline_id", "ref", "stage", "name")),
        all=False,
        **{key: value for key, value in page_parameters(Page(PAGE)).items() if key != "archived_before"},
    )
    assert 0 < rows_read(found) <= 2 * jobs + PAGE  # once for the page, once to count


AGE = """
    UPDATE pipelines SET status = 'manual', created_at = created_at - interval '4 days' WHERE project_id = %(id)s
"""


async def test_a_push_looks_for_what_it_cancels_among_the_unfinished_of_the_last_days(full):
    """It does not look at the 2,000 earlier pipelines of the branch, though each has a manual job that was not
    played."""
    database, project_id = full
    newest = await database.value("SELECT max(id) FROM pipelines WHERE project_id = %(id)s", id=project_id)
    async with undone(database) as transaction:
        await transaction.run(AGE, id=project_id)
        await transaction.run("ANALYZE pipelines")
        found = await scans(transaction, "pipelines", pipelines.SUPERSEDED, id=newest, head=None)
    assert rows_read(found) == 1


#: No job is pending while statistics are collected, and then many are at once.
ENQUEUE = """
    WITH chosen AS (SELECT id, row_number() OVER (ORDER BY id) AS number FROM jobs WHERE status = 'success' LIMIT 20000)
    UPDATE jobs SET status = 'pending', tag_list = ARRAY['kind ' || number %% 5] FROM chosen WHERE jobs.id = chosen.id
"""
TAGS = "UPDATE runners SET tag_list = %(tags)s::text[] WHERE id = %(id)s"


@pytest.mark.parametrize(
    ("tags", "lanes"),
    [([f"kind {number}" for number in range(5)], 5), (["kind 4"], 1), (["another"], 0)],
    ids=["all", "some", "none"],
)
async def test_a_runner_that_asks_for_a_job_reads_one_of_each_kind(full, tags, lanes):
    """It reads the first pending job of each kind, and of the kinds that it may take as many as may be locked, but not
    all 20,000."""
    database, _ = full
    async with undone(database) as transaction:
        await transaction.run(ENQUEUE)
        runner_id = await transaction.value(CREATE_RUNNER, digest=b"a runner")
        await transaction.run(TAGS, id=runner_id, tags=tags)
        await transaction.row("SET LOCAL plan_cache_mode = force_generic_plan")
        found = await scans(
            transaction, "jobs", job_queries.CHOOSE_JOB, runner_id=runner_id, star_is_any=False, depth=8
        )
    assert 0 < rows_read(found) <= 5 + lanes * 2 + lanes * 8 + 8
