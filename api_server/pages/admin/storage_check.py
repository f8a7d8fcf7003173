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
MOST_BYTES = 2 * 2**20
_TEXT = 300


@attrs.frozen
class Seen:
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
) -> Seen | Unreachable:
    """Send a GET request for `url`, whose path and query are already encoded, and follow no redirects. Return the
    answer, or why there is none."""
    begun = time.monotonic()
    digest, size, begin = hashlib.sha256(), 0, b""
    try:
        async with (
            asyncio.timeout(TIMEOUT),
            session.get(written_url(url), headers=headers, allow_redirects=False) as answer,
        ):
            async for piece in answer.content.iter_any():
                digest.update(piece)
                size += len(piece)
                begin += piece[: _TEXT - len(begin)]
                if size > MOST_BYTES:
                    break
            seconds = time.monotonic() - begun
            text = begin.decode(errors="replace").strip()
            return Seen(answer.status, answer.headers.copy(), size, digest.hexdigest(), text, seconds)
    except (aiohttp.ClientError, BlockedError, OSError) as problem:  # TimeoutError is one
        return _why(problem, url)


def _why(problem: Exception, url: str) -> Unreachable:
    at = written_url(url)
    address = f"{at.host}:{at.port}"
    match problem:
        case BlockedError():
            return Unreachable(
                f"This service may not call {address}: {problem}.",
                f"That need not keep users from it. To check it from here, put {address} on the allow list for "
                "outbound requests (Settings).",
            )
        case aiohttp.ClientConnectorDNSError():
            return Unreachable(
                f"The name {at.host} is not resolved.", "Check its spelling, and this machine's DNS."
            )
        case aiohttp.ClientConnectorCertificateError():
            return Unreachable(
                f"The TLS certificate of {address} is not trusted: {_certificate(problem.certificate_error)}.",
                "Give it a certificate for this name that this machine trusts.",
            )
        case aiohttp.ClientSSLError():
            return Unreachable(
                f"TLS with {address} fails: {problem.os_error.strerror or problem.os_error}.",
                "Does the URL begin with https:// though plain HTTP is spoken there?",
            )
        case aiohttp.ClientConnectorError() if isinstance(problem.os_error, ConnectionRefusedError):
            return Unreachable(
                f"The connection to {address} is refused: nothing listens there.",
                "Start the storage, or mend host and port.",
            )
        case aiohttp.ClientConnectorError():
            return Unreachable(
                f"{address} cannot be reached: {problem.os_error.strerror or problem.os_error}.",
                "Check host and port, routes and firewalls.",
            )
        case TimeoutError():
            return Unreachable(
                f"{address} has not answered within {TIMEOUT:.0f} seconds.",
                "Check whether it works, and firewalls.",
            )
        case _:
            return Unreachable(
                f"What listens at {address} does not speak HTTP as expected ({type(problem).__name__}).",
                "Check port and scheme of the URL.",
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

    def at(self, base: str) -> str:
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
        ask(session, params.at(storage.url), _NOT_OUT_OF_A_STORE),
    )
    findings = [_accepts(itself), _refuses(refused), _through(through, itself, storage)]
    if not isinstance(through, Seen) or findings[-1].state == "failed":
        return findings
    findings.append(_again(await ask(session, params.at(storage.url)), through))
    if storage.purge is None:
        return [*findings, _UNTOLD]
    purged = await storage.purge(params.surrogate_key)
    if purged.state == "passed":
        purged = _forgotten(await ask(session, params.at(storage.url)), purged, itself, storage)
    return [*findings, purged]


#: An answer from the storage's own copy would show neither whether its token is right nor whether it reaches us.
_NOT_OUT_OF_A_STORE = {"Cache-Control": "no-cache"}
_UNTOLD = Finding(
    "Purge",
    "warning",
    "This service tells nobody of changes: no edge is named to it.",
    "Where the storage is a storage edge, set edge_urls and edge_purge_token. Other storages serve what has changed or "
    "was closed until its lifetime ends, at most a minute for branches.",
)


async def _ask_service(
    session: aiohttp.ClientSession, storage: Storage, params: StaticObject, token: str
) -> Seen | Unreachable:
    return await ask(session, params.at(storage.service), {EXTERNAL_STORAGE_TOKEN_HEADER: token})


def _accepts(seen: Seen | Unreachable) -> Finding:
    title = "The service takes the storage's token"
    match seen:
        case Unreachable():
            return Finding(
                title,
                "failed",
                f"At its own external URL: {seen.reason}",
                f"{seen.remedy} The storage and users have to reach the service there (setting external_url).",
            )
        case Seen(status=200):
            return Finding(title, "passed", f"It answers {_described(seen)}")
        case Seen(status=404):
            return Finding(title, "passed", "It takes the token; there is no such object (404).")
        case _:
            return Finding(
                title,
                "failed",
                f"It answers {seen.status}: {seen.begin}",
                "Does another service answer at this one's external URL (setting external_url)?",
            )


def _refuses(seen: Seen | Unreachable) -> Finding:
    title = "The service refuses a wrong token"
    if isinstance(seen, Unreachable):
        return Finding(title, "failed", seen.reason, seen.remedy)
    if seen.status == 403:
        return Finding(title, "passed", "It answers 403.")
    text = f"It answers {seen.status} to a token that is not the storage's."
    return Finding(title, "failed", text, "A proxy in front of it may put another one in its place.")


def _through(seen: Seen | Unreachable, itself: Seen | Unreachable, storage: Storage) -> Finding:
    title = "An object through the storage"
    if isinstance(seen, Unreachable):
        return Finding(title, "failed", seen.reason, seen.remedy)
    if seen.status != 200:
        text, remedy = _wrong_status(seen, itself, storage)
        return Finding(title, "failed", text, remedy)
    if isinstance(itself, Seen) and itself.status == 200 and itself.sha256 != seen.sha256:
        return Finding(
            title,
            "failed",
            f"It answers 200 with something else than our object: {seen.size} bytes with SHA-256 {seen.sha256[:16]}…, "
            f"the service itself {itself.size} bytes with {itself.sha256[:16]}…",
            "Does the URL lead to a storage of this service? If it does, purge it: what it keeps is not true any more.",
        )
    if _is_kept(seen):
        text = f"It answers {_described(seen)}"
        return Finding(
            title, "warning", text, "It did so out of its store, which says nothing about its token."
        )
    same = (
        "; the same bytes as from the service itself"
        if isinstance(itself, Seen) and itself.status == 200
        else ""
    )
    return Finding(title, "passed", f"It answers {_described(seen)}{same}")


def _wrong_status(seen: Seen, itself: Seen | Unreachable, storage: Storage) -> tuple[str, str]:
    """Return what the storage's answer means, and what to do about it."""
    location = seen.headers.get("Location", "").partition("?")[0]
    match seen.status:
        case 400:
            return (
                "It answers 400: it takes no path of a static object below this URL.",
                "Give the URL of the storage's root, without a path, unless the storage takes that path away again.",
            )
        case status if status in _REDIRECTS and location.startswith(storage.url.rstrip("/")):
            return (
                f"It answers {status} and leads back to itself: the service takes its requests for a user's.",
                "Have the storage send the token of this page with each of its requests (storage_token of an edge).",
            )
        case status if status in _REDIRECTS:
            return (
                f"It answers {status} and leads to {location or 'nowhere'}.",
                "Give the URL that it leads to, or have the storage answer itself.",
            )
        case 403 if _WRONG_TOKEN in seen.begin:
            return (
                "The service refuses the token that the storage sends (403).",
                "Give the storage the token of this page (storage_token of an edge), or save here the one it has.",
            )
        case 404 if isinstance(itself, Seen) and itself.status == 404:
            return (
                "It answers 404, as the service does: there is no such object.",
                "Name one that there is.",
            )
        case 401 | 403 | 404:
            return (
                f"It answers {seen.status}, though the service gives it the object: {seen.begin or 'nothing is said'}",
                "Does the storage ask this service (origin of an edge), and does the URL lead to the storage?",
            )
        case 502 | 503 | 504:
            return (
                f"It answers {seen.status}: it gets no answer from the service. {seen.begin}".strip(),
                f"Check that the storage reaches {storage.service} (origin of an edge), and sends the token.",
            )
        case status:
            return (f"It answers {status}: {seen.begin or 'nothing is said'}", "Look into the storage's log.")


def _again(seen: Seen | Unreachable, first: Seen) -> Finding:
    title = "The same once more, from the storage's own copy"
    if isinstance(seen, Unreachable):
        return Finding(title, "failed", seen.reason, seen.remedy)
    if seen.status == 200 and seen.sha256 == first.sha256 and seen.is_hit:
        return Finding(title, "passed", f"It answers {_described(seen)}")
    said = seen.cache_status or "it does not say what its cache did (no Cache-Status)"
    remedy = (
        "It works as a detour only: have the storage keep what the service allows it to (CDN-Cache-Control)."
    )
    return Finding(title, "warning", f"It answers {seen.status}, not out of its store: {said}", remedy)


def _forgotten(
    seen: Seen | Unreachable, purged: Finding, itself: Seen | Unreachable, storage: Storage
) -> Finding:
    """Return the finding about the first answer after a purge, which has to come from the service."""
    if isinstance(seen, Unreachable) or seen.status != 200:
        return attrs.evolve(_through(seen, itself, storage), title="An object that the storage has not kept")
    if _is_kept(seen):
        return attrs.evolve(
            purged,
            state="failed",
            text=f"{purged.text} Even so it answers out of its store: {seen.cache_status}",
            remedy="Is the purged edge (edge_urls) the one that the URL leads to?",
        )
    return purged


def _is_kept(seen: Seen) -> bool:
    """Return whether a cache answered from its store without asking the service."""
    return seen.is_hit and "fwd=" not in seen.cache_status


def _described(seen: Seen) -> str:
    from_cache = f"; Cache-Status: {seen.cache_status}" if seen.cache_status else ""
    took = f"{seen.seconds * 1000:.0f} ms"
    return f"{seen.status} in {took}: {seen.size} bytes, SHA-256 {seen.sha256[:16]}…{from_cache}"


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
        for holder in await queries.holders(database, visibility, _PROJECTS):
            name = await asyncio.to_thread(_a_file, services[REPOSITORIES], holder.id, holder.default_branch)
            if name is not None:
                path = static_paths.parse(quote(f"/{holder.full_path}/-/raw/{holder.default_branch}/{name}"))
                token = None if visibility == "public" else await _token(request)
                return StaticObject(path.target, project_key(holder.id), token)
    raise no_object("There is no project with a file yet: push one, or name an object.")


async def named_object(request: web.Request, text: str) -> StaticObject:
    """Return the object at a path or URL of this service. Raise 400 if it is no such path, or the caller does not see
    the project."""
    try:
        path = urlsplit(text).path
        parsed = static_paths.parse(quote(unquote(path if path.startswith("/") else f"/{path}")))
    except ValueError as problem:
        raise no_object(f"{text} is no path of a raw file or an archive: {problem}") from None
    actor = caller(request)
    project = await visible_project(
        context.services(request),
        parsed.project,
        user_id=actor.user_id,
        admin=actor.admin,
        job_project_id=None,
    )
    if project is None:
        raise no_object(f"There is no project {parsed.project}.")
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
    for each in list(tree_of(repository, found_branch.commit))[:_FILES]:
        entry = trees.find_entry(repository, found_branch.commit, each.name or "")
        if entry is not None and entry.kind == "file" and (entry.size or 0) <= _LARGEST:
            return entry.path
    return None
