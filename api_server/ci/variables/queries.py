"""Statements about CI/CD variables. Values are encrypted in every row."""

from typing import Any

from api_server.state.database import Executor, Row, Transaction
from api_server.state.listing import Listed, Listing, Page, one, read_sql

_VARIABLE = read_sql(__package__)["variable"]
_OF_SOURCE = """
    (ci_variables.project_id = %(project_id)s::bigint OR ci_variables.namespace_id = %(namespace_id)s::bigint)
"""

LISTING = Listing(_VARIABLE, f"SELECT ci_variables.* FROM ci_variables WHERE {_OF_SOURCE}", {"key": "key"})


async def list_variables(database: Executor, page: Page, **source: int | None) -> Listed:
    """Those of one project_id or namespace_id; values as `variable` shows them."""
    return await LISTING.read(database, page, **source)


SHOW = one(_VARIABLE, "SELECT ci_variables.* FROM ci_variables WHERE ci_variables.id = %(id)s")


async def show(database: Executor, variable_id: int) -> str:
    return await database.entity(SHOW, id=variable_id)


FIND = f"""
    SELECT ci_variables.* FROM ci_variables
    WHERE {_OF_SOURCE} AND ci_variables.key = %(key)s
        AND (%(environment_scope)s::text IS NULL OR ci_variables.environment_scope = %(environment_scope)s)
    ORDER BY ci_variables.id LIMIT 2
"""


async def find(
    database: Executor, key: str, environment_scope: str | None, **source: int | None
) -> list[Row]:
    """Whole rows; two where there are more."""
    return await database.rows(FIND, key=key, environment_scope=environment_scope, **source)


CREATE = """
    INSERT INTO ci_variables (project_id, namespace_id, key, value, variable_type, protected, masked, hidden, raw,
        environment_scope, description)
    VALUES (%(project_id)s, %(namespace_id)s, %(key)s, %(value)s, %(variable_type)s, %(protected)s, %(masked)s,
        %(hidden)s, %(raw)s, %(environment_scope)s, %(description)s)
    RETURNING id
"""


async def create(transaction: Transaction, **values: Any) -> int:
    """The new variable's id. Raises Conflict on `ci_variables_project` and `ci_variables_group`."""
    return int(await transaction.value(CREATE, **values))


UPDATE = """
    UPDATE ci_variables SET value = %(value)s, variable_type = %(variable_type)s, protected = %(protected)s,
        masked = %(masked)s, raw = %(raw)s, environment_scope = %(environment_scope)s, description = %(description)s,
        updated_at = now()
    WHERE id = %(id)s
"""


async def update(transaction: Transaction, variable_id: int, **values: Any) -> None:
    """Raises Conflict as `create`."""
    await transaction.row(UPDATE, id=variable_id, **values)


DELETE = """
    DELETE FROM ci_variables WHERE id = %(id)s RETURNING id
"""


async def delete(transaction: Transaction, variable_id: int) -> None:
    await transaction.row(DELETE, id=variable_id)


#: The variables that a job of a project gets, with a `rank`: of one key the one with the highest counts. Groups come
#: before what is below them, the project last; of one place's the scope that fits the environment best.
APPLICABLE = """
    SELECT ARRAY[
            1, places.depth,
            CASE places.environment_scope WHEN '*' THEN 0 WHEN %(environment)s::text THEN 2 ELSE 1 END,
            length(places.environment_scope)
        ]::bigint[] AS rank,
        places.key, places.value, places.variable_type = 'file' AS file, places.raw, places.masked
    FROM projects JOIN namespaces ON namespaces.id = projects.namespace_id
    CROSS JOIN LATERAL (
        SELECT own.*, cardinality(namespaces.lineage) + 1 AS depth FROM ci_variables own
        WHERE own.project_id = projects.id
        UNION ALL
        SELECT above.*, array_position(namespaces.lineage, above.namespace_id) FROM ci_variables above
        WHERE above.namespace_id = ANY (namespaces.lineage)
    ) places
    WHERE projects.id = %(project_id)s::bigint AND (%(protected)s::boolean OR NOT places.protected)
        AND (places.environment_scope = '*' OR wildcard_matches(places.environment_scope, %(environment)s::text))
"""
APPLICABLE_IN_ORDER = f"SELECT * FROM ({APPLICABLE}) applicable ORDER BY rank, key"


async def applicable(
    database: Executor, project_id: int, *, protected: bool, environment: str | None = None
) -> list[Row]:
    """key, value (encrypted), file, raw, masked of what jobs of the project get, weakest first; `protected` says
    whether their ref is."""
    return await database.rows(
        APPLICABLE_IN_ORDER, project_id=project_id, protected=protected, environment=environment
    )
