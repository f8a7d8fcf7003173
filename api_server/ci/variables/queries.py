# mypy: disable-error-code="empty-body"
"""Statements about CI/CD variables. Values are encrypted in every row."""

from typing import Any

import attrs

from api_server.ci.config.variables import Variable
from api_server.state.audit_trail import INSTANCE, Entity
from api_server.state.database import Executor, Transaction
from api_server.state.declarations import statement
from api_server.state.listing import ListPage, ListQuery, Page, Quota, entity_statement, read_sql
from api_server.state.secrets import Vault
from api_server.state.statements import Query

_ENTITIES = read_sql(__package__)
#: The type of an owner and the column with its id.
_COLUMN: dict[str, str] = {"Project": "project_id", "Group": "namespace_id", INSTANCE.type: "instance_id"}
_OF_OWNER = " OR ".join(f"ci_variables.{column} = %({column})s::bigint" for column in _COLUMN.values())


def _columns_of(owner: Entity) -> dict[str, int | None]:
    """Return the columns of the owner (a project, group or the instance) as parameters."""
    return {column: owner.id if owner.type == kind else None for kind, column in _COLUMN.items()}


_ROWS = f"SELECT ci_variables.* FROM ci_variables WHERE ({_OF_OWNER})"
LISTING = ListQuery(_ENTITIES["variable"], _ROWS, {"key": "key"})
INSTANCE_LISTING = ListQuery(_ENTITIES["instance_variable"], _ROWS, {"key": "key"})


async def list_variables(database: Executor, page: Page, owner: Entity) -> ListPage:
    """Return a page of variables, with their values as the entity `variable` has them."""
    listing = INSTANCE_LISTING if owner == INSTANCE else LISTING
    return await listing.read(database, page, **_columns_of(owner))


_ONE = "SELECT ci_variables.* FROM ci_variables WHERE ci_variables.id = %(id)s"
SHOW = entity_statement(_ENTITIES["variable"], _ONE)
SHOW_OF_INSTANCE = entity_statement(_ENTITIES["instance_variable"], _ONE)


async def show(database: Executor, owner: Entity, variable_id: int) -> str:
    return await database.entity(SHOW_OF_INSTANCE if owner == INSTANCE else SHOW, id=variable_id)


@attrs.frozen
class StoredVariable:
    id: int
    key: str
    value: bytes
    variable_type: str
    protected: bool
    masked: bool
    hidden: bool
    raw: bool
    environment_scope: str
    description: str | None


_FOUND = f"""
    SELECT ci_variables.id, ci_variables.key, ci_variables.value, ci_variables.variable_type, ci_variables.protected,
        ci_variables.masked, ci_variables.hidden, ci_variables.raw, ci_variables.environment_scope,
        ci_variables.description
    FROM ci_variables
    WHERE ({_OF_OWNER}) AND ci_variables.key = %(key)s
        AND (%(environment_scope)s::text IS NULL OR ci_variables.environment_scope = %(environment_scope)s)
    ORDER BY ci_variables.id LIMIT 2
"""
FIND = Query(_FOUND, StoredVariable)
LOCK = Query(f"{_FOUND} FOR UPDATE", StoredVariable)


async def find(database: Executor, owner: Entity, key: str, scope: str | None) -> list[StoredVariable]:
    """Return the variables of a key with one `environment_scope` or (None) any; two if there are more."""
    return await database.rows(FIND, key=key, environment_scope=scope, **_columns_of(owner))


async def lock(transaction: Transaction, owner: Entity, key: str, scope: str | None) -> list[StoredVariable]:
    """Find variables like `find`, and prevent others from changing them until the transaction ends."""
    return await transaction.rows(LOCK, key=key, environment_scope=scope, **_columns_of(owner))


QUOTAS = {kind: Quota("ci_variables", column) for kind, column in _COLUMN.items()}

CREATE = """
    INSERT INTO ci_variables (project_id, namespace_id, instance_id, key, value, variable_type, protected, masked,
        hidden, raw, environment_scope, description, created_at, updated_at)
    VALUES (%(project_id)s, %(namespace_id)s, %(instance_id)s, %(key)s, %(value)s, %(variable_type)s, %(protected)s,
        %(masked)s, %(hidden)s, %(raw)s, %(environment_scope)s, %(description)s, %(now)s, %(now)s)
    RETURNING id
"""


async def create(transaction: Transaction, owner: Entity, **values: Any) -> int:
    """Create a variable and return its id. Raise Conflict if the owner has one of that key and scope."""
    return int(await transaction.value(CREATE, **_columns_of(owner), **values))


@statement("""
    UPDATE ci_variables SET value = %(value)s, variable_type = %(variable_type)s, protected = %(protected)s,
        masked = %(masked)s, raw = %(raw)s, environment_scope = %(environment_scope)s, description = %(description)s,
        updated_at = %(now)s
    WHERE id = %(variable_id)s
""")
async def update(transaction: Transaction, variable_id: int, **values: Any) -> None:
    """Change the variable. Raise Conflict like `create`."""


@statement("""
    DELETE FROM ci_variables WHERE id = %(variable_id)s
""")
async def delete(transaction: Transaction, variable_id: int) -> None: ...


#: The variables that a job of a project gets, with a `rank`; of each key, the one with the highest rank
#: counts. The instance ranks lowest, then groups from the root down, then the project; within each, the scope
#: that matches the environment best ranks highest.
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
        UNION ALL
        SELECT everywhere.*, 0 FROM ci_variables everywhere WHERE everywhere.instance_id = 1
    ) places
    WHERE projects.id = %(project_id)s::bigint AND (%(protected)s::boolean OR NOT places.protected)
        AND (places.environment_scope = '*' OR wildcard_matches(places.environment_scope, %(environment)s::text))
"""


@attrs.frozen
class SealedVariable:
    """A variable as jobs get it, with its value encrypted."""

    key: str
    value: bytes
    file: bool
    raw: bool
    masked: bool

    def opened(self, vault: Vault) -> Variable:
        """Return the variable with its value decrypted."""
        return Variable(
            self.key,
            vault.decrypt(self.value),
            public=False,
            masked=self.masked,
            file=self.file,
            raw=self.raw,
        )


#: Maximum bytes of the encrypted values of a job.
MAX_BYTES = 8 * 2**20


class TooManyBytes(ValueError):
    """The variables of a job are together larger than `MAX_BYTES`."""


def weakest_first(layers: str) -> str:
    """Return the statement that reads the variables of `layers` in the order of their ranks.

    It reads no more of them than `checked` needs to detect that they are too large.
    """
    return f"""
    SELECT counted.key, counted.value, counted.file, counted.raw, counted.masked
    FROM (
        SELECT layers.*, sum(octet_length(layers.value)) OVER (ORDER BY layers.rank, layers.key) AS bytes
        FROM ({layers}) layers
    ) counted
    WHERE counted.bytes - octet_length(counted.value) <= {MAX_BYTES} ORDER BY counted.rank, counted.key
    """


def checked(variables: list[SealedVariable]) -> list[SealedVariable]:
    """Return the same rows. Raise `TooManyBytes`."""
    if sum(len(variable.value) for variable in variables) > MAX_BYTES:
        raise TooManyBytes(f"the job has more than {MAX_BYTES >> 20} MiB of variables")
    return variables


APPLICABLE_IN_ORDER = Query(weakest_first(APPLICABLE), SealedVariable)


async def applicable(
    database: Executor, project_id: int, *, protected: bool, environment: str | None = None
) -> list[SealedVariable]:
    """Return the variables that jobs of the project get, weakest first; `protected` says whether their ref
    is. Raise `TooManyBytes`."""
    return checked(
        await database.rows(
            APPLICABLE_IN_ORDER, project_id=project_id, protected=protected, environment=environment
        )
    )
