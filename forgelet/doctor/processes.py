"""Checks of both processes, of all edges, and of the failures that the service has recorded."""

import datetime
import email.utils
import hmac
import socket
from collections.abc import Sequence
from typing import Any

import aiohttp
from yarl import URL

from api_server.accounts import instance_settings
from api_server.operations import failing
from api_server.operations.failing import Failure
from api_server.outbound.destinations import written_url
from api_server.outbound.edges import EdgeApi, EdgeRefuses
from api_server.settings import Settings
from api_server.state import database as databases
from api_server.state import secrets
from api_server.state.database import Database
from api_server.state.errors import Unavailable
from common.client_settings import ClientSettings
from common.config_errors import ConfigError, binding
from common.operations import LIVENESS
from forgelet.doctor.findings import (
    REQUEST_SECONDS,
    DiagnosedInstance,
    Finding,
    failed,
    in_thread,
    ok,
    unreachable,
    warning,
)
from forgelet.doctor.surroundings import CLOCKS_DIFFER

#: The kind of finding for each state of readiness. The message of a part that is ok names what slows the process down.
_STATES = {"ok": warning, "degraded": warning, "failed": failed}
#: What to do about parts that no other line of the doctor is about.
_REMEDIES = {"queue": "start `forgelet worker`, or turn the setting work on"}


async def api_server(instance: DiagnosedInstance) -> list[Finding]:
    """Check the API server of these settings."""
    if instance.api is None:
        return []
    return await _process(instance, "the API server", instance.api, "forgelet api", tls=False)


async def storage_edge(instance: DiagnosedInstance) -> list[Finding]:
    """Check the storage edge of these settings, if there is one on this machine."""
    edge = instance.edge
    if edge is None or not edge.port:
        return []
    tls = edge.tls_cert is not None
    return await _process(instance, "the storage edge", edge, "forgelet edge", tls=tls)


async def _process(
    instance: DiagnosedInstance, title: str, settings: Any, command: str, *, tls: bool
) -> list[Finding]:
    session, address = instance.session, f"{settings.host}:{settings.port}"
    base = _base(settings.host, settings.port, tls=tls)
    try:
        status, body = await _ask(session, f"{base}{LIVENESS}")
    except (aiohttp.ClientError, OSError, ValueError) as problem:
        command = "forgelet up" if instance.is_local else command
        return [await _silent(title, settings, command, unreachable(problem))]
    if body == {"status": "starting"}:
        return [warning(f"{title} is starting on {address}", "wait, and look at its log if that takes long")]
    if status != 200 or body != {"status": "ok"}:
        return [_address_in_use(title, address)]
    return [ok(f"{title} runs on {address}"), *await _readiness(session, title, settings, base)]


async def _silent(title: str, settings: ClientSettings, command: str, reason: str) -> Finding:
    host, port = getattr(settings, "host", ""), getattr(settings, "port", 0)
    try:
        await in_thread(_bind, host, port)
    except ConfigError as error:
        if "in use" in error.message:
            return _address_in_use(title, f"{host}:{port}", f" ({reason})")
        return failed(error.message, "choose another host or port")
    return warning(
        f"{title} does not run: nothing listens on {host}:{port}",
        f"start it: `{command}`",
    )


def _address_in_use(title: str, address: str, reason: str = "") -> Finding:
    return failed(
        f"what listens on {address} is not {title}{reason}",
        f"stop the other program (`ss -ltnp` names it), or give {title} another port",
    )


def _bind(host: str, port: int) -> None:
    """Raise `ConfigError` if a process cannot listen on that address."""
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
            _REMEDIES.get(name, "see the other lines, or docs/troubleshooting.md"),
        )
        for name, part in parts
        if part.get("status") != "ok" or "message" in part
    ]


async def _ask(session: aiohttp.ClientSession, url: str) -> tuple[int, dict[str, Any]]:
    timeout = aiohttp.ClientTimeout(total=REQUEST_SECONDS)
    # The answer identifies the local process. Its certificate is not checked, because it is for clients' names.
    async with session.get(url, timeout=timeout, ssl=False, allow_redirects=False) as answer:
        body = await answer.json(content_type=None)
        return answer.status, body if isinstance(body, dict) else {}


def _base(host: str, port: int, *, tls: bool) -> str:
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"{'https' if tls else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"


_STORAGE = "Admin → Settings → Repository → External storage"
_TOKENS = "give both processes one token: edge_purge_token of the service, purge_token of the edge"


async def edges(instance: DiagnosedInstance) -> list[Finding]:
    """Check the edges of `edge_urls`, one after the other, because there are few."""
    settings = instance.api
    if settings is None or not settings.edge_urls:
        return []
    if not settings.edge_purge_token:
        return [failed("edge_urls are set, edge_purge_token is not: no edge can be told of changes", _TOKENS)]
    findings = []
    for url in settings.edge_urls:
        api = EdgeApi(url, settings.edge_purge_token, instance.session, REQUEST_SECONDS)
        findings += await _edge(api)
    return findings


async def _edge(api: EdgeApi) -> list[Finding]:
    url = str(URL(api.url).with_user(None))
    try:
        async with api.session.get(
            written_url(f"{api.url.rstrip('/')}{LIVENESS}"), timeout=aiohttp.ClientTimeout(total=api.timeout)
        ) as answer:
            living, date = answer.status == 200, answer.headers.get("Date")
        status = await api.status() if living else {}
    except EdgeRefuses as problem:
        return [_refused(url, problem.status)]
    except (aiohttp.ClientError, OSError, ValueError) as problem:
        return [
            failed(
                f"the edge {url} cannot be reached: {unreachable(problem)}",
                "start it, or mend or remove its URL in edge_urls",
            )
        ]
    if not living:
        return [failed(f"what answers at {url} is no storage edge", "mend its URL in edge_urls")]
    return [
        ok(f"the edge {url} can be reached, and takes the purge token"),
        *_of_origin(url, status.get("origin") or {}),
        *_of_clock(url, date),
    ]


def _refused(url: str, status: int) -> Finding:
    if status in (401, 403):
        return failed(
            f"the purge token of the edge {url} is not the service's: it goes on serving what has changed",
            _TOKENS,
        )
    if status == 404:
        return failed(f"the edge {url} has no purge token, or is of another version", _TOKENS)
    return failed(f"the edge {url} answers {status} when it is asked how it is", "look at its log")


def _of_origin(url: str, origin: dict[str, Any]) -> list[Finding]:
    problem = origin.get("problem") or "it does not say why"
    if origin.get("reachable") is False:
        return [
            failed(
                f"the edge {url} cannot reach its origin: {problem}",
                "mend the edge's setting origin, or the network",
            )
        ]
    if origin.get("token") == "wrong":
        return [
            failed(
                f"the service refuses the storage token of the edge {url}: private files are not served",
                f"give the edge's storage_token the value of {_STORAGE}",
            )
        ]
    if origin.get("token") == "right":
        return [ok(f"the service accepts the storage token of the edge {url}")]
    return [
        warning(
            f"it is not known whether the service accepts the storage token of the edge {url}: {problem}",
            f"compare the edge's storage_token with {_STORAGE}",
        )
    ]


def _of_clock(url: str, date: str | None) -> list[Finding]:
    """Compare an edge's clock with this machine's by the Date of its answer, which has whole seconds."""
    try:
        edge_time = email.utils.parsedate_to_datetime(date or "")
    except ValueError:
        return []
    if edge_time.tzinfo is None:
        return []
    ahead = (edge_time - datetime.datetime.now(datetime.UTC)).total_seconds()
    if abs(ahead) <= 2 * CLOCKS_DIFFER:
        return []
    direction = "ahead of" if ahead > 0 else "behind"
    return [
        warning(
            f"the clock of the edge {url} is {abs(ahead):.0f} s {direction} this machine's",
            "keep both right (NTP)",
        )
    ]


async def external_storage(instance: DiagnosedInstance, database: Database) -> list[Finding]:
    """Check the external storage to which users are redirected: whether it is notified of changes, and whether the edge
    of these settings has its token."""
    settings = instance.api
    if settings is None:
        return []
    try:
        vault = secrets.open_vault(settings.data_dir)
    except ConfigError:  # there is no secret key yet
        return []
    stored = await instance_settings.read(database, vault, instance_settings.defaults(settings))
    url, edge_urls = stored.static_objects_external_storage_url, settings.edge_urls
    if url and not edge_urls:
        return [
            warning(
                f"people are sent to {url} for files, which is not told of changes: edge_urls is empty",
                "name the edges in edge_urls",
            )
        ]
    if edge_urls and not url:
        return [
            warning(
                "nobody is sent to the edges: no URL of an external storage is set", f"set it in {_STORAGE}"
            )
        ]
    edge, token = instance.edge, stored.static_objects_external_storage_auth_token
    if not url or edge is None or edge.origin_flavour != "service" or not _is_here(edge.origin_url, settings):
        return []
    # Without a token here, only the edge may know it, as under systemd: `edges` asks whether it is right.
    if not edge.storage_token:
        return []
    return [_storage_token(str(edge.storage_token), token or "")]


def _is_here(origin: URL, settings: Settings) -> bool:
    """Return whether `origin` is the service of these settings."""
    here = {URL(settings.base_url).origin(), URL.build(scheme="http", host=settings.host, port=settings.port)}
    return origin in here


def _storage_token(has: str, expected: str) -> Finding:
    remedy = f"give the edge's storage_token the value of {_STORAGE}"
    if not expected:
        return failed(f"the token of {_STORAGE} is not set: private files are not served", remedy)
    if not hmac.compare_digest(has.encode(), expected.encode()):
        return failed("the edge's storage_token is not the one that the service knows it by", remedy)
    return ok("the edge's storage_token is the one that the service knows it by")


#: Maximum number of failures of one kind that are shown.
MAX_OF_KIND = 10
#: The commands that list all failures of a kind.
_COMMANDS = {"mirror": "mirror list", "delivery": "delivery list", "task": "task list"}


async def work(instance: DiagnosedInstance) -> list[Finding]:
    """Report the recorded failures, and check the external storage. Return nothing without a usable database, which
    another check reports."""
    settings = instance.api
    if settings is None or not await instance.database_serves:
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
            failures = await failing.failing(database, database.now)
            return [*_findings_of(failures), *await external_storage(instance, database)]
    except Unavailable as problem:
        remedy = "look at PostgreSQL's log and load"
        return [failed(f"the database did not say what fails: {problem.cause}", remedy)]


def _findings_of(failures: Sequence[Failure]) -> list[Finding]:
    """Return one finding for each failure, at most `MAX_OF_KIND` of a kind."""
    if not failures:
        return [ok("no mirror, delivery, mail, edge, store, runner or task fails")]
    findings: list[Finding] = []
    for kind in dict.fromkeys(failure.kind for failure in failures):
        of_kind = list(dict.fromkeys(_finding(failure) for failure in failures if failure.kind == kind))
        findings += of_kind[:MAX_OF_KIND]
        if len(of_kind) > MAX_OF_KIND:
            command = _COMMANDS.get(kind)
            remedy = f"`forgelet {command} --failing` lists them" if command else "mend these first"
            findings.append(failed(f"{len(of_kind) - MAX_OF_KIND} more of this kind fail: {kind}", remedy))
    return findings


def _finding(failure: Failure) -> Finding:
    """Return the finding for a failure. Missing runners are only a warning, because the service itself works without
    them."""
    since = f" since {failure.since:%Y-%m-%d %H:%M:%S} UTC" if failure.since else ""
    report = warning if failure.kind == "runner" else failed
    return report(f"{failure.kind} {failure.name}{since}: {failure.reason}", failure.remedy)
