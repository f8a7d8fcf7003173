"""The two processes: they run, on ports that nobody else has, and what they say of themselves."""

import socket
from typing import Any

import aiohttp

from common.client_settings import ClientSettings
from common.mistakes import Mistake, binding
from common.operations import LIVENESS
from forgelet.doctor.findings import Finding, failed, ok, warning
from forgelet.doctor.patient import REQUEST_SECONDS, Patient, in_thread, unreachable

#: Of readiness. A part that works, and says something, says what slows the process down.
_STATES = {"ok": warning, "degraded": warning, "failed": failed}


async def api_server(patient: Patient) -> list[Finding]:
    """The API server of these settings."""
    if patient.api is None:
        return []
    return await _process(patient.session, "the API server", patient.api, "forgelet api", tls=False)


async def storage_edge(patient: Patient) -> list[Finding]:
    """The edge of these settings, where there is one on this machine."""
    edge = patient.edge
    if edge is None or not edge.port:
        return []
    tls = edge.tls_cert is not None
    return await _process(patient.session, "the storage edge", edge, "forgelet edge", tls=tls)


async def _process(
    session: aiohttp.ClientSession, title: str, settings: Any, command: str, *, tls: bool
) -> list[Finding]:
    place = f"{settings.host}:{settings.port}"
    base = _base(settings.host, settings.port, tls=tls)
    try:
        status, body = await _ask(session, f"{base}{LIVENESS}")
    except (aiohttp.ClientError, OSError, ValueError) as problem:
        return [await _silent(title, settings, command, unreachable(problem))]
    if body == {"status": "starting"}:
        return [warning(f"{title} is starting on {place}", "wait, and look at its log if that takes long")]
    if status != 200 or body != {"status": "ok"}:
        return [_taken(title, place)]
    return [ok(f"{title} runs on {place}"), *await _readiness(session, title, settings, base)]


async def _silent(title: str, settings: ClientSettings, command: str, reason: str) -> Finding:
    host, port = getattr(settings, "host", ""), getattr(settings, "port", 0)
    try:
        await in_thread(_bind, host, port)
    except Mistake as mistake:
        if "in use" in mistake.message:
            return _taken(title, f"{host}:{port}", f" ({reason})")
        return failed(mistake.message, "choose another host or port")
    return warning(
        f"{title} does not run: nothing listens on {host}:{port}",
        f"start it: `forgelet up` for everything, `{command}` for it alone",
    )


def _taken(title: str, place: str, reason: str = "") -> Finding:
    return failed(
        f"what listens on {place} is not {title}{reason}",
        f"stop the other program (`ss -ltnp` names it), or give {title} another port",
    )


def _bind(host: str, port: int) -> None:
    """Raises `Mistake` where one cannot listen there."""
    with binding(host, port):
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)


async def _readiness(
    session: aiohttp.ClientSession, title: str, settings: ClientSettings, base: str
) -> list[Finding]:
    if settings.operations_port:
        base = _base(getattr(settings, "host", ""), settings.operations_port, tls=False)
    try:
        status, body = await _ask(session, f"{base}/-/readiness")
    except (aiohttp.ClientError, OSError, ValueError) as problem:
        return [
            failed(f"{title} does not say how it is: {unreachable(problem)}", "look at its log, restart it")
        ]
    if status == 404:
        return [
            warning(f"{title} does not tell this machine how it is", "add its address to operations_networks")
        ]
    parts = [(name, part) for name, part in body.items() if isinstance(part, dict)]
    return [
        _STATES.get(str(part.get("status")), failed)(
            f"{title} says of its {name.replace('_', ' ')}: {part.get('message', part.get('status'))}",
            "what the other lines say of it, or docs/troubleshooting.md",
        )
        for name, part in parts
        if part.get("status") != "ok" or "message" in part
    ]


async def _ask(session: aiohttp.ClientSession, url: str) -> tuple[int, dict[str, Any]]:
    timeout = aiohttp.ClientTimeout(total=REQUEST_SECONDS)
    # Whoever answers on this machine is asked who he is; certificates are for the names that clients use.
    async with session.get(url, timeout=timeout, ssl=False, allow_redirects=False) as answer:
        body = await answer.json(content_type=None)
        return answer.status, body if isinstance(body, dict) else {}


def _base(host: str, port: int, *, tls: bool) -> str:
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"{'https' if tls else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"
