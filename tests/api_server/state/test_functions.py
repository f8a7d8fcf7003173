"""How the functions of the schema are written."""

import asyncpg

from tests.support.forge import Forge

#: Functions in SQL that return a value and look into tables. PostgreSQL inlines none of them: each would be planned
#: anew in every statement that calls it.
PLANNED_EACH_TIME = """
    SELECT proname::text FROM pg_proc JOIN pg_language ON pg_language.oid = prolang
    WHERE lanname = 'sql' AND NOT proretset AND pronamespace = 'public'::regnamespace
        AND prosqlbody::text LIKE '%:rtekind 0 %'
"""


async def test_no_function_is_planned_in_each_statement(forge: Forge) -> None:
    connection = await asyncpg.connect(forge.settings.database_url)
    try:
        assert [row["proname"] for row in await connection.fetch(PLANNED_EACH_TIME)] == []
        # What is looked for is found.
        await connection.execute(
            "CREATE FUNCTION pg_temp.users_there() RETURNS bigint LANGUAGE sql RETURN (SELECT count(*) FROM users)"
        )
        here = PLANNED_EACH_TIME.replace("'public'::regnamespace", "pg_my_temp_schema()")
        assert [row["proname"] for row in await connection.fetch(here)] == ["users_there"]
    finally:
        await connection.close()
