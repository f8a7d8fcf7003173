"""The application without a server, and the author of audit events, for commands that make changes as the API does."""

import getpass
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import attrs

from api_server.services import Services
from api_server.state import secrets
from api_server.state.audit_trail import Author
from api_server.state.database import Transaction
from api_server.state.errors import LockNotAvailable, Unavailable
from api_server.state.preconditions import revoke_alone
from api_server.web.errors import ApiError
from common.config_errors import ConfigError
from forgelet.instance import Instance

#: Number of connections to the database.
_POOL = 2


@asynccontextmanager
async def services_of(instance: Instance) -> AsyncIterator[Services]:
    """Yield the application's services, whether a server runs or not. Raise `ConfigError` if the database has another
    version's schema or another secret key, or if the API would refuse a change in the block."""
    from api_server.app import joined  # imports the whole server, which help and errors do not need

    url = instance.migrated_database_url
    settings = attrs.evolve(instance.api_settings, database_url=url, database_pool=_POOL)
    settings.data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    secrets.ensure_key(url, settings.data_dir)
    with _refusals():
        async with joined(settings) as services:
            yield services


@asynccontextmanager
async def changing(services: Services, *, revokes: str | None = None) -> AsyncIterator[Transaction]:
    """Yield a transaction. If it revokes rights, `revokes` names their owner ("user:7"), and the transaction locks
    them."""
    async with services.database.transaction() as transaction:
        if revokes is not None:
            await revoke_alone(transaction, revokes)
        yield transaction


def author() -> Author:
    """Return the account of this machine that runs the command, as the author of audit events."""
    try:
        account = os.environ.get("SUDO_USER") or getpass.getuser()
    except (KeyError, OSError):
        account = str(os.getuid())
    return Author(id=-1, name=f"{account} (command line)")


@contextmanager
def _refusals() -> Iterator[None]:
    """Turn the errors that the API would answer into `ConfigError`."""
    try:
        yield
    except ApiError as refused:
        raise ConfigError(_sentence(refused.body)) from None
    except LockNotAvailable:
        raise ConfigError("Requests to the service have locked the rows to change: try again") from None
    except Unavailable as problem:
        raise ConfigError(f"PostgreSQL cannot be used: {problem.cause or problem}") from None


def _sentence(body: Any) -> str:
    """Return the sentence in `{"message": {"email": ["is invalid"]}}` and similar bodies."""
    message = body.get("message") or body.get("error") if isinstance(body, dict) else body
    if isinstance(message, dict):
        parts = [f"{field.replace('_', ' ')} {text}" for field, texts in message.items() for text in texts]
        message = "; ".join(parts)
        message = message[:1].upper() + message[1:]
    if isinstance(message, list):
        message = "; ".join(map(str, message))
    return str(message)
