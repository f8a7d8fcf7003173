"""What jobs leave behind, logs and artifacts, and its removal."""

from api_server.state.database import Transaction

DELETE_ROWS = """
    WITH artifacts AS (DELETE FROM job_artifacts WHERE job_id = %(id)s)
    DELETE FROM job_traces WHERE job_id = %(id)s
"""


async def delete_job_data(transaction: Transaction, job_id: int) -> None:
    """Removes the log and the artifacts of a job: the rows now, the bytes by queued work once this has committed."""
    await transaction.row(DELETE_ROWS, id=job_id)
