"""Hearing from a runner: which machine it is on, and what it says of itself."""

from collections.abc import Mapping
from typing import Any

import attrs
from aiohttp import web

from api_server.ci.runners import manager_queries
from api_server.ci.runners.manager_queries import Machine
from api_server.ci.runners.queries import Runner
from api_server.web import context
from api_server.web.request_data import merged


@attrs.frozen
class Contact:
    """The runner manager that calls."""

    manager_id: int
    #: It knows the status `canceling`.
    cancels_gracefully: bool
    #: It takes other steps than `script` and `after_script`, such as `release`.
    takes_steps: bool


async def note_contact(request: web.Request, runner: Runner, system_id: str | None) -> Contact:
    """Writes down that the runner has been heard of. Its parameter `info` may have any shape: what of it cannot be
    understood is passed over."""
    info = _mapping((await merged(request)).get("info"))
    manager_id = await manager_queries.note_contact(
        context.database(request), runner.id, _machine(system_id, info, request.remote)
    )
    features = _mapping(info.get("features"))
    return Contact(
        manager_id,
        cancels_gracefully=features.get("cancel_gracefully") is True,
        takes_steps=features.get("multi_build_steps") is True,
    )


def _mapping(told: Any) -> Mapping[str, Any]:
    return told if isinstance(told, dict) else {}


def _machine(system_id: str | None, info: Mapping[str, Any], ip_address: str | None) -> Machine:
    return Machine(
        system_id=(system_id or "")[:255],
        version=_text(info.get("version")),
        revision=_text(info.get("revision")),
        platform=_text(info.get("platform")),
        architecture=_text(info.get("architecture")),
        executor=_text(info.get("executor")),
        ip_address=ip_address,
    )


def _text(told: Any) -> str | None:
    return told.replace("\0", "")[:255] or None if isinstance(told, str) else None
