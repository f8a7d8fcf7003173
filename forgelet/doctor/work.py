"""What the service is there for, by its own notes: what fails, and whether runners are there."""

from api_server.state import database as databases
from api_server.state.errors import Unavailable
from forgelet.doctor import edges
from forgelet.doctor.findings import Finding
from forgelet.doctor.patient import REQUEST_SECONDS, Patient


async def work(patient: Patient) -> list[Finding]:
    """Nothing where the database or the key cannot be used: that is said elsewhere."""
    settings = patient.api
    if settings is None or not await patient.database_serves:
        return []
    try:
        async with databases.connect(
            settings.database_url,
            base_url=settings.base_url,
            size=1,
            statement_timeout=REQUEST_SECONDS,
            connect_timeout=REQUEST_SECONDS,
            prepares=settings.prepare_statements,
        ) as database:
            return await edges.external_storage(patient, database)
    except (Unavailable, UnicodeError):
        return []
