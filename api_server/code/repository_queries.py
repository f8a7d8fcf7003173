# mypy: disable-error-code="empty-body"
"""Statements about commits, tags and repositories."""

from collections.abc import Sequence

import attrs

from api_server.state.database import Executor
from api_server.state.declarations import statement
from api_server.state.listing import listed_text
from api_server.state.statements import Statement

LAST_PIPELINE = Statement("""
    SELECT pipeline_in_list(pipelines, projects.full_path)
    FROM pipelines JOIN projects ON projects.id = pipelines.project_id
    WHERE pipelines.project_id = %(project_id)s AND pipelines.sha = %(sha)s AND pipelines.source <> 'parent_pipeline'
    ORDER BY pipelines.id DESC LIMIT 1
""")


async def last_pipeline(database: Executor, project_id: int, sha: str) -> str | None:
    """Return the newest pipeline of a commit, except child pipelines, in the form of lists, or None."""
    pipeline: str | None = await database.value(LAST_PIPELINE, project_id=project_id, sha=sha)
    return pipeline


@attrs.frozen
class TagRelease:
    """The part of a release that tags show."""

    tag_name: str
    description: str | None


RELEASES_OF = Statement(
    f"""
    WITH page AS (
        SELECT releases.* FROM releases
        WHERE releases.project_id = %(project_id)s AND releases.tag = ANY (%(tags)s::text[]))
    SELECT page.tag AS tag_name, {listed_text("description")} AS description FROM page
    """,
    TagRelease,
)


async def releases_of(database: Executor, project_id: int, tags: Sequence[str]) -> dict[str, TagRelease]:
    """Return the releases of these tags, by the tag's name."""
    rows = await database.rows(RELEASES_OF, project_id=project_id, tags=list(tags))
    return {row.tag_name: row for row in rows}


#: Ids that this database has never assigned are left out: they come from a newer database that a backup has replaced.
@statement("""
    SELECT given.id FROM unnest(%(ids)s::bigint[]) AS given (id)
    WHERE NOT EXISTS (SELECT FROM projects WHERE projects.id = given.id)
        AND given.id <= pg_sequence_last_value(pg_get_serial_sequence('projects', 'id')::regclass)
    """)
async def without_project(database: Executor, ids: Sequence[int]) -> list[int]:
    """Return those of the ids that were or would have become a project's, but are not now."""
