"""A check of the external storage of static objects: it sends real requests, and explains why one has failed."""

import asyncio
import hashlib
import ssl
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Literal
from urllib.parse import quote, unquote, urlsplit

import aiohttp
import attrs
from aiohttp import web

from api_server.git import references, trees
from api_server.git.commits import tree_of
from api_server.git.repositories import REPOSITORIES, Repositories
from api_server.namespaces.access import visible_project
from api_server.outbound.destinations import BlockedError, written_url
from api_server.outbound.edges import project_key
from api_server.pages.admin import queries
from api_server.state.secrets import STATIC_OBJECT_TOKEN
from api_server.static_objects import queries as static_objects
from api_server.web import context
from api_server.web.errors import ApiError, invalid
from api_server.web.routes import caller
from common import static_paths
from common.static_paths import EXTERNAL_STORAGE_TOKEN_HEADER, TOKEN_PARAMETER

#: Time limit of one request with its body, in seconds.
TIMEOUT = 10.0
#: Maximum number of bytes read of an answer. The requested object is far smaller.
MAX_BYTES = 2 * 2**20
_TEXT = 300


@attrs.frozen
class Answer:
    """An answer. `begin` is the beginning of its body as text; `seconds` is the time until its end."""

    status: int
    headers: Mapping[str, str]
    size: int
    sha256: str
    begin: str
    seconds: float

    @property
    def cache_status(self) -> str:
        """The `Cache-Status` of caches on the way (RFC 9211), or the `X-Cache` that some send instead."""
        return self.headers.get("Cache-Status") or self.headers.get("X-Cache", "")

    @property
    def is_hit(self) -> bool:
        """Whether a cache answered from its store."""
        parts = [part.strip().lower() for part in self.cache_status.replace(",", ";").split(";")]
        return (
            "hit" in parts
            or self.cache_status.lower().startswith("hit")
            or self.headers.get("Age", "0") != "0"
        )


@attrs.frozen
class Unreachable:
    """The reason why there is no answer, in one sentence, and what to do about it."""

    reason: str
    remedy: str


async def ask(
    session: aiohttp.ClientSession, url: str, headers: Mapping[str, str] | None = None
) -> Answer | Unreachable:
    """Send a GET request for `url`, whose path and query are already encoded, and follow no redirects. Return the
    answer, or why there is none."""
    start = time.monotonic()
    digest, size, begin = hashlib.sha256(), 0, b""
    try:
        async with (
            asyncio.timeout(TIMEOUT),
            session.get(written_url(url), headers=headers, allow_redirects=False) as answer,
        ):
            async for chunk in answer.content.iter_any():
                digest.update(chunk)
                size += len(chunk)
                begin += chunk[: _TEXT - len(begin)]
                if size > MAX_BYTES:
                    break
            seconds = time.monotonic() - start
            text = begin.decode(errors="replace").strip()
            return Answer(answer.status, answer.headers.copy(), size, digest.hexdigest(), text, seconds)
    except (aiohttp.ClientError, BlockedError, OSError) as problem:  # TimeoutError is one
        return _unreachable(problem, url)


def _unreachable(problem: Exception, url: str) -> Unreachable:
    target = written_url(url)
    address = f"{target.host}:{target.port}"
    match problem:
        case BlockedError():
            return Unreachable(
                f"This service is not allowed to send requests to {address}: {problem}.",
                f"Users may still reach the storage. To check it from here, add {address} to the allowlist for "
                "outbound requests (Settings).",
            )
        case aiohttp.ClientConnectorDNSError():
            return Unreachable(
                f"The host name {target.host} cannot be resolved.",
                "Check the spelling of the host name and this machine's DNS.",
            )
        case aiohttp.ClientConnectorCertificateError():
            return Unreachable(
                f"The TLS certificate of {address} is not trusted: {_certificate(problem.certificate_error)}.",
                "Install a certificate for this host name that this machine trusts.",
            )
        case aiohttp.ClientSSLError():
            return Unreachable(
                f"TLS with {address} fails: {problem.os_error.strerror or problem.os_error}.",
                "Check whether the port expects plain HTTP although the URL starts with https://.",
            )
        case aiohttp.ClientConnectorError() if isinstance(problem.os_error, ConnectionRefusedError):
            return Unreachable(
                f"The connection to {address} is refused: nothing listens there.",
                "Start the storage, or correct host and port.",
            )
        case aiohttp.ClientConnectorError():
            return Unreachable(
                f"{address} cannot be reached: {problem.os_error.strerror or problem.os_error}.",
                "Check host and port, routes and firewalls.",
            )
        case TimeoutError():
            return Unreachable(
                f"{address} did not respond within {TIMEOUT:.0f} seconds.",
                "Check that the storage is running, and check firewalls.",
            )
        case _:
            return Unreachable(
                f"{address} did not respond with valid HTTP ({type(problem).__name__}).",
                "Check the port and the scheme of the URL.",
            )


def _certificate(problem: Exception) -> str:
    return (
        str(getattr(problem, "verify_message", "") or problem)
        if isinstance(problem, ssl.SSLError)
        else str(problem)
    )


State = Literal["passed", "warning", "failed"]
_REDIRECTS = (301, 302, 303, 307, 308)
_WRONG_TOKEN = "external storage token is not the configured one"


@attrs.frozen
class Finding:
    """The result of one step of the check: what was seen, and what to do if that is not right."""

    title: str
    state: State
    text: str
    remedy: str = ""


@attrs.frozen
class StaticObject:
    """The object to request. `path` is a path of the service, encoded. `token` is needed if anonymous callers may not
    read it."""

    path: str
    surrogate_key: str
    token: str | None = attrs.field(default=None, repr=False)

    def url_on(self, base: str) -> str:
        query = f"?{TOKEN_PARAMETER}={self.token}" if self.token else ""
        return f"{base.rstrip('/')}{self.path}{query}"


@attrs.frozen
class Storage:
    """The configured storage: the URL to which users are redirected, the URL of this service, and the token that the
    storage has to send. `purge` purges a surrogate key at the edges; it is None if no edges are configured."""

    url: str
    service: str
    token: str = attrs.field(repr=False)
    purge: Callable[[str], Awaitable[Finding]] | None = None


async def check(session: aiohttp.ClientSession, storage: Storage, params: StaticObject) -> list[Finding]:
    """Return all findings, in the order in which they were made. The check changes nothing in the storage, except that
    it stores the object, and purges the object's project if it can."""
    itself, refused, through = await asyncio.gather(
        _ask_service(session, storage, params, storage.token),
        _ask_service(session, storage, params, f"not-{storage.token[::-1]}"),
        ask(session, params.url_on(storage.url), _NOT_OUT_OF_A_STORE),
    )
    findings = [_accepts_token(itself), _rejects_token(refused), _first_request(through, itself, storage)]
    if not isinstance(through, Answer) or findings[-1].state == "failed":
        return findings
    findings.append(_second_request(await ask(session, params.url_on(storage.url)), through))
    if storage.purge is None:
        return [*findings, _UNTOLD]
    purged = await storage.purge(params.surrogate_key)
    if purged.state == "passed":
        purged = _after_purge(await ask(session, params.url_on(storage.url)), purged, itself, storage)
    return [*findings, purged]


#: An answer from the storage's own copy would show neither whether its token is right nor whether it reaches us.
_NOT_OUT_OF_A_STORE = {"Cache-Control": "no-cache"}
_UNTOLD = Finding(
    "Purge",
    "warning",
    "No edges are configured for purging.",
    "If the storage is a storage edge, set edge_urls and edge_purge_token. Other storages serve outdated content until "
    "it expires, for branches after at most one minute.",
)


async def _ask_service(
    session: aiohttp.ClientSession, storage: Storage, params: StaticObject, token: str
) -> Answer | Unreachable:
    return await ask(session, params.url_on(storage.service), {EXTERNAL_STORAGE_TOKEN_HEADER: token})


def _accepts_token(answer: Answer | Unreachable) -> Finding:
    title = "The service accepts the storage's token"
    match answer:
        case Unreachable():
            return Finding(
                title,
                "failed",
                f"External URL of this service: {answer.reason}",
                f"{answer.remedy} The storage and users must reach the service at this URL (setting external_url).",
            )
        case Answer(status=200):
            return Finding(title, "passed", f"Response {_described(answer)}")
        case Answer(status=404):
            return Finding(title, "passed", "The token is accepted; the object does not exist (404).")
        case _:
            return Finding(
                title,
                "failed",
                f"It answers {answer.status}: {answer.begin}",
                "Check whether another service responds at this service's external URL (setting external_url).",
            )


def _rejects_token(answer: Answer | Unreachable) -> Finding:
    title = "The service rejects a wrong token"
    if isinstance(answer, Unreachable):
        return Finding(title, "failed", answer.reason, answer.remedy)
    if answer.status == 403:
        return Finding(title, "passed", "Response 403.")
    text = f"Response {answer.status} to a wrong token."
    return Finding(title, "failed", text, "A proxy in front of the service may replace the token.")


def _first_request(answer: Answer | Unreachable, direct: Answer | Unreachable, storage: Storage) -> Finding:
    title = "Request through the storage"
    if isinstance(answer, Unreachable):
        return Finding(title, "failed", answer.reason, answer.remedy)
    if answer.status != 200:
        text, remedy = _wrong_status(answer, direct, storage)
        return Finding(title, "failed", text, remedy)
    if isinstance(direct, Answer) and direct.status == 200 and direct.sha256 != answer.sha256:
        return Finding(
            title,
            "failed",
            f"Response 200 with a different object: {answer.size} bytes with SHA-256 {answer.sha256[:16]}…, "
            f"from the service {direct.size} bytes with {direct.sha256[:16]}…",
            "Check that the URL leads to a storage of this service. If it does, purge the outdated content.",
        )
    if _came_from_cache(answer):
        text = f"Response {_described(answer)}"
        return Finding(
            title,
            "warning",
            text,
            "The response came from the storage's cache, so the token was not checked.",
        )
    same = "; same content as from the service" if isinstance(direct, Answer) and direct.status == 200 else ""
    return Finding(title, "passed", f"Response {_described(answer)}{same}")


def _wrong_status(answer: Answer, direct: Answer | Unreachable, storage: Storage) -> tuple[str, str]:
    """Return what the storage's answer means, and what to do about it."""
    location = answer.headers.get("Location", "").partition("?")[0]
    match answer.status:
        case 400:
            return (
                "Response 400: the storage does not accept paths of static objects below this URL.",
                "Enter the root URL of the storage without a path, unless the storage removes the path.",
            )
        case status if status in _REDIRECTS and location.startswith(storage.url.rstrip("/")):
            return (
                f"Response {status} redirects back to the storage: the service treats its requests as those of a user.",
                "Configure the storage to send the token of this page with each request (storage_token of an edge).",
            )
        case status if status in _REDIRECTS:
            return (
                f"Response {status} redirects to {location or 'no URL'}.",
                "Enter the URL of the redirect, or configure the storage not to redirect.",
            )
        case 403 if _WRONG_TOKEN in answer.begin:
            return (
                "The service rejects the token that the storage sends (403).",
                "Configure the token of this page in the storage (storage_token of an edge), or save its token here.",
            )
        case 404 if isinstance(direct, Answer) and direct.status == 404:
            return (
                "Response 404, also from the service: the object does not exist.",
                "Enter an existing object.",
            )
        case 401 | 403 | 404:
            return (
                f"Response {answer.status}, although the service has the object: {answer.begin or 'no message'}",
                "Check that the storage uses this service as its origin, and that the URL leads to the storage.",
            )
        case 502 | 503 | 504:
            return (
                f"Response {answer.status}: the storage gets no response from the service. {answer.begin}".strip(),
                f"Check that the storage can reach {storage.service} (origin of an edge) and sends the token.",
            )
        case status:
            return (f"Response {status}: {answer.begin or 'no message'}", "Check the storage's log.")


def _second_request(answer: Answer | Unreachable, first: Answer) -> Finding:
    title = "Second request, from the storage's cache"
    if isinstance(answer, Unreachable):
        return Finding(title, "failed", answer.reason, answer.remedy)
    if answer.status == 200 and answer.sha256 == first.sha256 and answer.is_hit:
        return Finding(title, "passed", f"Response {_described(answer)}")
    found_status = answer.cache_status or "no Cache-Status header"
    remedy = "The storage does not cache. Configure the storage to cache as the service allows (CDN-Cache-Control)."
    return Finding(title, "warning", f"Response {answer.status}, not from the cache: {found_status}", remedy)


def _after_purge(
    answer: Answer | Unreachable, purged: Finding, direct: Answer | Unreachable, storage: Storage
) -> Finding:
    """Return the finding about the first answer after a purge, which has to come from the service."""
    if isinstance(answer, Unreachable) or answer.status != 200:
        return attrs.evolve(_first_request(answer, direct, storage), title="Request after the purge")
    if _came_from_cache(answer):
        return attrs.evolve(
            purged,
            state="failed",
            text=f"{purged.text} However, the response still comes from the cache: {answer.cache_status}",
            remedy="Check that the URL leads to the purged edge (edge_urls).",
        )
    return purged


def _came_from_cache(answer: Answer) -> bool:
    """Return whether a cache answered from its store without asking the service."""
    return answer.is_hit and "fwd=" not in answer.cache_status


def _described(answer: Answer) -> str:
    from_cache = f"; Cache-Status: {answer.cache_status}" if answer.cache_status else ""
    took = f"{answer.seconds * 1000:.0f} ms"
    return f"{answer.status} in {took}: {answer.size} bytes, SHA-256 {answer.sha256[:16]}…{from_cache}"


#: Maximum number of projects of each visibility that are searched, and of files in each project.
_PROJECTS, _FILES = 20, 50
_LARGEST = 2**20


def no_object(text: str) -> ApiError:
    """Return the 400 error about the object to request."""
    return invalid({"object": [text]})


async def find_object(request: web.Request) -> StaticObject:
    """Return a small file of a public project or, if there is none, of another one. Raise 400 if no project has one."""
    services = context.services(request)
    database = services.database
    for visibility in ("public", "internal", "private"):
        for holder in await queries.projects_with_files(database, visibility, _PROJECTS):
            name = await asyncio.to_thread(_a_file, services[REPOSITORIES], holder.id, holder.default_branch)
            if name is not None:
                path = static_paths.parse(quote(f"/{holder.full_path}/-/raw/{holder.default_branch}/{name}"))
                token = None if visibility == "public" else await _token(request)
                return StaticObject(path.target, project_key(holder.id), token)
    raise no_object("No project with a file found. Push a file, or enter an object.")


async def named_object(request: web.Request, text: str) -> StaticObject:
    """Return the object at a path or URL of this service. Raise 400 if it is no such path, or the caller does not see
    the project."""
    try:
        path = urlsplit(text).path
        parsed = static_paths.parse(quote(unquote(path if path.startswith("/") else f"/{path}")))
    except ValueError as problem:
        raise no_object(f"{text} is not the path of a raw file or an archive: {problem}") from None
    actor = caller(request)
    project = await visible_project(
        context.services(request),
        parsed.project,
        user_id=actor.user_id,
        admin=actor.admin,
        job_project_id=None,
    )
    if project is None:
        raise no_object(f"Project {parsed.project} not found.")
    token = None if project.shows_repository_to_everybody else await _token(request)
    return StaticObject(parsed.target, project_key(project.id), token)


async def _token(request: web.Request) -> str:
    """Return the caller's token for static objects, which has access to all that she may read."""
    services = context.services(request)
    user = await static_objects.user(services.database, caller(request).user_id)
    return services.vault.derived_token(STATIC_OBJECT_TOKEN, user.static_object_seed if user else b"")


def _a_file(repositories: Repositories, project_id: int, branch: str) -> str | None:
    """Return the name of a small file in the root folder of the branch, or None."""
    if not repositories.exists(project_id):
        return None
    repository = repositories.open(project_id)
    found_branch = references.branch(repository, branch)
    if found_branch is None:
        return None
    for child in list(tree_of(repository, found_branch.commit))[:_FILES]:
        entry = trees.find_entry(repository, found_branch.commit, child.name or "")
        if entry is not None and entry.kind == "file" and (entry.size or 0) <= _LARGEST:
            return entry.path
    return None
