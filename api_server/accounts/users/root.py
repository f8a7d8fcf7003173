"""The first account: the administrator `root`, and the token that the operator has preset for it."""

from aiohttp import web

from api_server.accounts.users import accounts, queries, root_queries
from api_server.settings import Settings
from api_server.state import audit_trail, secrets
from api_server.state.audit_trail import SYSTEM, Entity
from api_server.web.context import DATABASE, App
from common.lifecycle import Change

#: The preset token may do whatever there is, also with another user's rights (`Sudo`).
PRESET_SCOPES = ["api", "sudo"]


async def ensure_administrator(app: App, token: str) -> None:
    """Makes `root` where it does not exist; a preset `token` takes the place of the one that was preset before."""
    async with app[DATABASE].transaction() as transaction:
        await root_queries.hold_start(transaction)
        user = await queries.find_user_by_username(transaction, "root")
        if user is None:
            new = accounts.NewUser(
                username="root", name="Administrator", email="root@localhost", confirmed=True, admin=True
            )
            user_id = await accounts.create(app, transaction, new, SYSTEM)
        else:
            user_id = user.id
        if not token:
            return
        changed = await root_queries.replace_preset_token(
            transaction, user_id, secrets.digest(token), PRESET_SCOPES
        )
        if changed is not None:
            await audit_trail.record(
                transaction,
                "personal_access_token_created",
                author=SYSTEM,
                entity=Entity(type="User", id=user_id, path="root"),
                message=f"Created personal access token with id {changed}",
            )


def preset_token(app: web.Application, fresh: Settings) -> Change:
    """The token that `fresh` presets takes the place of the one before, in a running server."""

    async def change() -> None:
        await ensure_administrator(app, fresh.root_token)

    return change
