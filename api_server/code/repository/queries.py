"""Statements about what is known of commits."""

from api_server.state.database import Executor
from api_server.state.statements import Statement

LAST_PIPELINE = Statement("""
    SELECT pipeline_in_list(pipelines, projects.full_path)
    FROM pipelines JOIN projects ON projects.id = pipelines.project_id
    WHERE pipelines.project_id = %(project_id)s AND pipelines.sha = %(sha)s AND pipelines.source <> 'parent_pipeline'
    ORDER BY pipelines.id DESC LIMIT 1
""")


async def last_pipeline(database: Executor, project_id: int, sha: str) -> str | None:
    """The newest pipeline of a commit, child pipelines aside, as lists show it."""
    shown: str | None = await database.value(LAST_PIPELINE, project_id=project_id, sha=sha)
    return shown
