"""The edges: they can be reached, take our purges, and have the token with which the service knows them."""

import datetime
import email.utils
import hmac
from typing import Any

import aiohttp
from yarl import URL

from api_server.accounts import instance_settings
from api_server.outbound.destinations import written_url
from api_server.outbound.edges import EdgeApi, EdgeRefuses
from api_server.settings import Settings
from api_server.state import secrets
from api_server.state.database import Database
from common.mistakes import Mistake
from common.operations import LIVENESS
from forgelet.doctor.database import CLOCKS_DIFFER
from forgelet.doctor.findings import Finding, failed, ok, warning
from forgelet.doctor.patient import REQUEST_SECONDS, Patient, unreachable

_STORAGE = "Admin → Settings → Repository → External storage"
_TOKENS = "give both processes one token: edge_purge_token of the service, purge_token of the edge"


async def edges(patient: Patient) -> list[Finding]:
    """Each of `edge_urls`, one after the other: they share nothing, but there are few."""
    settings = patient.api
    if settings is None or not settings.edge_urls:
        return []
    if not settings.edge_purge_token:
        return [failed("edge_urls are set, edge_purge_token is not: no edge can be told of changes", _TOKENS)]
    findings = []
    for url in settings.edge_urls:
        api = EdgeApi(url, settings.edge_purge_token, patient.session, REQUEST_SECONDS)
        findings += await _edge(api)
    return findings


async def _edge(api: EdgeApi) -> list[Finding]:
    shown = str(URL(api.url).with_user(None))
    try:
        async with api.session.get(
            written_url(f"{api.url.rstrip('/')}{LIVENESS}"), timeout=aiohttp.ClientTimeout(total=api.timeout)
        ) as answer:
            living, date = answer.status == 200, answer.headers.get("Date")
        status = await api.status() if living else {}
    except EdgeRefuses as problem:
        return [_refused(shown, problem.status)]
    except (aiohttp.ClientError, OSError, ValueError) as problem:
        return [
            failed(
                f"the edge {shown} cannot be reached: {unreachable(problem)}",
                "start it, or mend or remove its URL in edge_urls",
            )
        ]
    if not living:
        return [failed(f"what answers at {shown} is no storage edge", "mend its URL in edge_urls")]
    return [
        ok(f"the edge {shown} can be reached, and takes the purge token"),
        *_of_origin(shown, status.get("origin") or {}),
        *_of_clock(shown, date),
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
    """By the Date of its answer, in whole seconds."""
    try:
        theirs = email.utils.parsedate_to_datetime(date or "")
    except ValueError:
        return []
    if theirs.tzinfo is None:
        return []
    ahead = (theirs - datetime.datetime.now(datetime.UTC)).total_seconds()
    if abs(ahead) <= 2 * CLOCKS_DIFFER:
        return []
    which = "ahead of" if ahead > 0 else "behind"
    return [
        warning(
            f"the clock of the edge {url} is {abs(ahead):.0f} s {which} this machine's",
            "keep both right (NTP)",
        )
    ]


async def external_storage(patient: Patient, database: Database) -> list[Finding]:
    """Where the service sends people to for files: is it told of changes, and does the edge of these settings have the
    token that is set there?"""
    settings = patient.api
    if settings is None:
        return []
    try:
        vault = secrets.open_vault(settings.data_dir)
    except Mistake:  # none yet
        return []
    instance = await instance_settings.read(database, vault, instance_settings.defaults(settings))
    url, known = instance.static_objects_external_storage_url, settings.edge_urls
    if url and not known:
        return [
            warning(
                f"people are sent to {url} for files, which is not told of changes: edge_urls is empty",
                "name the edges in edge_urls",
            )
        ]
    if known and not url:
        return [
            warning(
                "nobody is sent to the edges: no URL of an external storage is set", f"set it in {_STORAGE}"
            )
        ]
    edge, token = patient.edge, instance.static_objects_external_storage_auth_token
    if not url or edge is None or edge.origin_flavour != "service" or not _is_here(edge.origin_url, settings):
        return []
    return [_storage_token(str(edge.storage_token), token or "")]


def _is_here(origin: URL, settings: Settings) -> bool:
    """Whether that is the service of these settings."""
    here = {URL(settings.base_url).origin(), URL.build(scheme="http", host=settings.host, port=settings.port)}
    return origin in here


def _storage_token(has: str, wanted: str) -> Finding:
    remedy = f"give the edge's storage_token the value of {_STORAGE}"
    if not has or not wanted:
        whose = "the edge's storage_token" if not has else f"the token of {_STORAGE}"
        return failed(f"{whose} is not set: private files are not served", remedy)
    if not hmac.compare_digest(has.encode(), wanted.encode()):
        return failed("the edge's storage_token is not the one that the service knows it by", remedy)
    return ok("the edge's storage_token is the one that the service knows it by")
