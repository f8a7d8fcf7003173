"""What the audit trail tells."""

from tests.support.forge import Forge


async def events(forge: Forge, entity_type: str, entity_id: int) -> list[tuple[str, str]]:
    """Type and message of the events of this entity, the oldest first."""
    rows = await forge.database.rows(
        "SELECT event_type, details::json ->> 'custom_message' AS message FROM audit_events"
        " WHERE entity_type = %(type)s AND entity_id = %(id)s ORDER BY id",
        type=entity_type,
        id=entity_id,
    )
    return [(row.event_type, row.message) for row in rows]
