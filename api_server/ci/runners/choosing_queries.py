"""Which pending job is a runner's next.

Projects take turns: first the one with the fewest jobs in runners' hands, then the oldest job. Rows that another
hand-out holds are passed over, so that of any number of runners each gets another job, and none waits for one.

Jobs that no runner tells apart, of one project with the same tags and all on protected refs or none, make a lane. The
oldest of each lane are looked at and no others, so that the cost is that of the lanes that the runner may take from,
and not of the jobs in them.
"""

from collections.abc import Collection, Sequence

import attrs

from api_server.state.database import Executor, Transaction
from api_server.state.statements import Statement

#: How many jobs are locked in vain, at most, before there is another look. Eight times as many then.
FIRST_DEPTH = 8

#: In the words of the index `jobs_waiting`, which no other index knows: that one is walked, whatever statistics say.
_WAITS = "jobs.kind || ' ' || jobs.status = 'build pending'"


@attrs.frozen
class Choice:
    """A job, whose row is locked. None: others hold all that were looked at, `looked_at` of them."""

    id: int | None
    looked_at: int


#: What jobs want of a runner, each once: a step from one to the next in the index.
_KINDS = f"""
        (
            SELECT tags_digest(jobs.tag_list) AS digest, jobs.tag_list, jobs.protected FROM jobs WHERE {_WAITS}
            ORDER BY tags_digest(jobs.tag_list), jobs.protected, jobs.project_id, jobs.id LIMIT 1
        )
        UNION ALL
        SELECT next.* FROM kinds CROSS JOIN LATERAL (
            SELECT tags_digest(jobs.tag_list), jobs.tag_list, jobs.protected FROM jobs WHERE {_WAITS}
                AND (tags_digest(jobs.tag_list), jobs.protected) > (kinds.digest, kinds.protected)
            ORDER BY tags_digest(jobs.tag_list), jobs.protected, jobs.project_id, jobs.id LIMIT 1
        ) next
    """

#: Whether a runner has what jobs of a kind want.
_FITS = """(kinds.tag_list <@ runner.tag_list OR %(star_is_any)s::boolean AND '*' = ANY (runner.tag_list))
            AND (kinds.tag_list <> '{}' OR runner.run_untagged)
            AND (kinds.protected OR runner.access_level <> 'ref_protected')"""

#: Whether any runner gets jobs of a project.
_OPEN = "projects.builds_access_level <> 'disabled' AND NOT projects.archived"

#: `lanes` goes from one project to the next in the same way; the few projects of a project's runner are looked up one
#: by one. Nobody counts what runs where only one project waits. The first `depth` jobs of all are among the first
#: `depth` of the `depth` lanes that are nearest.
CHOOSE = Statement(
    f"""
    WITH RECURSIVE runner AS MATERIALIZED (
        SELECT * FROM runners WHERE runners.id = %(runner_id)s AND runners.active
    ),
    kinds AS ({_KINDS}),
    fitting AS MATERIALIZED (
        SELECT kinds.digest, kinds.protected FROM runner JOIN kinds
            ON {_FITS}
    ),
    lanes AS (
        SELECT fitting.digest, fitting.protected, first.project_id, first.id
        FROM runner CROSS JOIN fitting CROSS JOIN LATERAL (
            SELECT jobs.project_id, jobs.id FROM jobs WHERE {_WAITS}
                AND tags_digest(jobs.tag_list) = fitting.digest AND jobs.protected = fitting.protected
            ORDER BY jobs.project_id, jobs.id LIMIT 1
        ) first
        WHERE runner.runner_type <> 'project_type'
        UNION ALL
        SELECT lanes.digest, lanes.protected, next.project_id, next.id
        FROM lanes CROSS JOIN LATERAL (
            SELECT jobs.project_id, jobs.id FROM jobs WHERE {_WAITS}
                AND tags_digest(jobs.tag_list) = lanes.digest AND jobs.protected = lanes.protected
                AND jobs.project_id > lanes.project_id
            ORDER BY jobs.project_id, jobs.id LIMIT 1
        ) next
    ),
    lanes_of_runner AS MATERIALIZED (
        SELECT * FROM lanes
        UNION ALL
        SELECT fitting.digest, fitting.protected, first.project_id, first.id
        FROM runner JOIN runner_projects ON runner_projects.runner_id = runner.id
        CROSS JOIN fitting CROSS JOIN LATERAL (
            SELECT jobs.project_id, jobs.id FROM jobs WHERE {_WAITS}
                AND tags_digest(jobs.tag_list) = fitting.digest AND jobs.protected = fitting.protected
                AND jobs.project_id = runner_projects.project_id
            ORDER BY jobs.id LIMIT 1
        ) first
        WHERE runner.runner_type = 'project_type'
    ),
    busy AS MATERIALIZED (
        SELECT waiting.project_id, (
            SELECT count(*) FROM unnest(ARRAY['running', 'canceling']) AS taken (status)
            JOIN jobs ON jobs.project_id = waiting.project_id AND jobs.status = taken.status AND jobs.kind = 'build'
        ) AS running
        FROM (SELECT DISTINCT project_id FROM lanes_of_runner) waiting
        WHERE (SELECT min(project_id) <> max(project_id) FROM lanes_of_runner)
    ),
    nearest AS MATERIALIZED (
        SELECT turns.* FROM (
            SELECT lanes_of_runner.*, coalesce(busy.running, 0) AS running
            FROM lanes_of_runner LEFT JOIN busy USING (project_id)
            ORDER BY coalesce(busy.running, 0), lanes_of_runner.id
        ) turns
        CROSS JOIN LATERAL (
            SELECT FROM runner, projects JOIN namespaces ON namespaces.id = projects.namespace_id
            WHERE projects.id = turns.project_id
                AND {_OPEN}
                AND (runner.runner_type <> 'group_type' OR runner.namespace_id = ANY (namespaces.lineage))
            OFFSET 0 -- asked of one lane after the other, until there are enough
        ) open
        ORDER BY turns.running, turns.id LIMIT %(depth)s::integer
    ),
    candidates AS MATERIALIZED (
        SELECT nearest.running, waiting.id FROM nearest CROSS JOIN LATERAL (
            SELECT jobs.id FROM jobs WHERE {_WAITS}
                AND tags_digest(jobs.tag_list) = nearest.digest AND jobs.protected = nearest.protected
                AND jobs.project_id = nearest.project_id
            ORDER BY jobs.id LIMIT %(depth)s::integer
        ) waiting
        ORDER BY nearest.running, waiting.id LIMIT %(depth)s::integer
    ),
    chosen AS (
        SELECT jobs.id FROM candidates JOIN jobs ON jobs.id = candidates.id
        WHERE {_WAITS}
        ORDER BY candidates.running, candidates.id LIMIT 1
        FOR UPDATE OF jobs SKIP LOCKED
    )
    SELECT (SELECT chosen.id FROM chosen) AS id, (SELECT count(*) FROM candidates) AS looked_at
    """,
    Choice,
    planned_once=True,
)


async def choose(transaction: Transaction, runner_id: int, *, star_is_any: bool) -> int | None:
    """The id of the pending job that is the runner's next, its row locked; None too for a paused runner. With
    `star_is_any`, a runner with the tag `*` has all tags."""
    depth = FIRST_DEPTH
    while True:
        choice = await transaction.one(CHOOSE, runner_id=runner_id, star_is_any=star_is_any, depth=depth)
        if choice.id is not None or choice.looked_at < depth:
            return choice.id
        depth *= 8


#: Asked of one runner after the other, until there are enough.
ABLE = Statement(
    f"""
    WITH RECURSIVE kinds AS ({_KINDS}),
    wanting AS MATERIALIZED (
        SELECT kinds.tag_list, kinds.protected, projects.id AS project_id, namespaces.lineage
        FROM unnest(%(project_ids)s::bigint[]) AS told (id)
        JOIN projects ON projects.id = told.id JOIN namespaces ON namespaces.id = projects.namespace_id
        CROSS JOIN kinds CROSS JOIN LATERAL (
            SELECT FROM jobs WHERE {_WAITS}
                AND tags_digest(jobs.tag_list) = kinds.digest AND jobs.protected = kinds.protected
                AND jobs.project_id = projects.id
            LIMIT 1
        ) one
        WHERE {_OPEN}
    )
    SELECT ARRAY(SELECT asking.id FROM (
        SELECT one.id, one.place FROM unnest(%(runner_ids)s::bigint[]) WITH ORDINALITY AS one (id, place)
        WHERE EXISTS (SELECT FROM wanting)
        ORDER BY one.place
    ) asking
    CROSS JOIN LATERAL (
        SELECT FROM runners runner JOIN wanting kinds ON {_FITS}
        WHERE runner.id = asking.id AND runner.active AND CASE runner.runner_type
            WHEN 'instance_type' THEN true
            WHEN 'group_type' THEN runner.namespace_id = ANY (kinds.lineage)
            ELSE EXISTS (
                SELECT FROM runner_projects
                WHERE runner_projects.runner_id = runner.id AND runner_projects.project_id = kinds.project_id) END
        LIMIT 1
    ) able
    ORDER BY asking.place LIMIT %(most)s::integer)
    """,
    planned_once=True,
)


PROJECTS_THAT_WAIT = Statement(f"SELECT ARRAY(SELECT DISTINCT jobs.project_id FROM jobs WHERE {_WAITS})")


async def able(
    database: Executor,
    runner_ids: Sequence[int],
    project_ids: Collection[int | None],
    most: int,
    *,
    star_is_any: bool,
) -> list[int]:
    """The first `most` of the runners that may take a job of these projects that waits, held by others or not; with
    None among them, of any project."""
    named: list[int] = [project_id for project_id in project_ids if project_id is not None]
    if len(named) < len(project_ids):
        named = await database.value(PROJECTS_THAT_WAIT)
    runners: list[int] = await database.value(
        ABLE, runner_ids=list(runner_ids), project_ids=named, most=most, star_is_any=star_is_any
    )
    return runners
