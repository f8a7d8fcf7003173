"""A release goes with its tag, however that is removed, as at GitLab."""

from collections.abc import Sequence

from aiohttp import web

from api_server.code.ref_queries import MovedProject
from api_server.code.refs import REF_LISTENERS
from api_server.git.received_push import RefUpdate
from api_server.git.ref_names import TAGS
from api_server.releases import queries
from api_server.releases.queries import OfTag
from api_server.state import audit_trail
from api_server.state.audit_trail import SYSTEM, Author, Entity
from api_server.state.database import Transaction


def setup(app: web.Application) -> None:
    app[REF_LISTENERS].append(_react)


async def _react(
    transaction: Transaction, project: MovedProject, user_id: int | None, updates: Sequence[RefUpdate]
) -> None:
    tags = [
        one.ref.removeprefix(TAGS) for one in updates if one.kind == "delete" and one.ref.startswith(TAGS)
    ]
    if not tags:
        return
    for gone in await queries.delete_of_tags(transaction, project.id, tags, user_id):
        await audit_trail.record(
            transaction,
            "release_deleted_audit_event",
            author=_author(user_id, gone),
            entity=Entity(type="Project", id=project.id, path=gone.project_path),
            target_id=gone.id,
            target_details=gone.name,
            message=f"Deleted release {gone.tag}",
        )


def _author(user_id: int | None, gone: OfTag) -> Author:
    if user_id is None or gone.author_name is None:
        return SYSTEM
    return Author(
        id=user_id,
        name=gone.author_name,
        username=gone.author_username or "",
        email=gone.author_email or "",
    )
