"""What requests about variables have in common, whoever owns them: which one is meant, what is left as it was, and
values as they were given."""

import base64
from typing import Any

import attrs
import orjson
from aiohttp import web

from api_server.ci.variables import queries
from api_server.ci.variables.queries import StoredVariable
from api_server.ci.variables.rules import Values
from api_server.state.audit_trail import Entity
from api_server.state.database import Executor
from api_server.state.listing import Listed
from api_server.state.secrets import Vault
from api_server.web import context
from api_server.web.answers import json_text
from api_server.web.errors import conflict, not_found
from api_server.web.params import UNSET


def only(variables: list[StoredVariable], kind: str = "Variable") -> StoredVariable:
    """Raises 404 where nothing has been found, and 409 where more than one has."""
    if not variables:
        raise not_found(kind)
    if len(variables) > 1:
        raise conflict(
            "There are multiple variables with provided parameters. Please use 'filter[environment_scope]'"
        )
    return variables[0]


def updated(before: StoredVariable, vault: Vault, sent: dict[str, Any]) -> Values:
    """What the variable holds after the update: what was `sent`, null as it was but for the description."""
    kept = {field.name: getattr(before, field.name) for field in attrs.fields(Values)}
    kept["value"] = vault.decrypt(before.value)
    given = {
        name: value
        for name, value in sent.items()
        if value is not UNSET and (value is not None or name == "description")
    }
    return Values(**kept | given)


async def answer(
    request: web.Request, database: Executor, owner: Entity, variable_id: int, status: int = 200
) -> web.Response:
    """The variable as the API shows it."""
    entity = orjson.loads(await queries.show(database, owner, variable_id))
    shown = _opened(context.vault(request), entity)
    return json_text(orjson.dumps(shown).decode(), status=status)


def opened(request: web.Request, listed: Listed) -> Listed:
    """A page of variables with their values."""
    shown = [_opened(context.vault(request), one) for one in orjson.loads(listed.body)]
    return attrs.evolve(listed, body=orjson.dumps(shown).decode())


def _opened(vault: Vault, entity: dict[str, Any]) -> dict[str, Any]:
    """The entity with its value as it was given."""
    sealed = entity["value"]
    return entity | {"value": None if sealed is None else vault.decrypt(base64.b64decode(sealed))}
