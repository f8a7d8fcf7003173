"""The check of the external storage of static objects: real requests, to the service as the storage sends them and
through the storage as users do, and what they have shown."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Literal

import aiohttp
import attrs

from api_server.pages.admin.storage_requests import Seen, Unreachable, ask
from common.static_paths import EXTERNAL_STORAGE_TOKEN_HEADER, TOKEN_PARAMETER

State = Literal["passed", "warning", "failed"]
_REDIRECTS = (301, 302, 303, 307, 308)
_WRONG_TOKEN = "external storage token is not the configured one"


@attrs.frozen
class Finding:
    """One thing that was looked at: what was seen, and where that is not right, what to do."""

    title: str
    state: State
    text: str
    remedy: str = ""


@attrs.frozen
class StaticObject:
    """What is asked for: a path of the service, encoded; `token` opens what strangers may not read."""

    path: str
    surrogate_key: str
    token: str | None = attrs.field(default=None, repr=False)

    def at(self, base: str) -> str:
        query = f"?{TOKEN_PARAMETER}={self.token}" if self.token else ""
        return f"{base.rstrip('/')}{self.path}{query}"


@attrs.frozen
class Storage:
    """As it is configured: where users are sent, the token that it has to send, and the service's own URL. `purge` has
    the storage forget what has a surrogate key; None where nobody tells it."""

    url: str
    service: str
    token: str = attrs.field(repr=False)
    purge: Callable[[str], Awaitable[Finding]] | None = None


async def check(session: aiohttp.ClientSession, storage: Storage, wanted: StaticObject) -> list[Finding]:
    """All findings, in the order in which they were made. Nothing of the storage is changed but that it has the object
    afterwards."""
    itself, refused, through = await asyncio.gather(
        _ask_service(session, storage, wanted, storage.token),
        _ask_service(session, storage, wanted, f"not-{storage.token[::-1]}"),
        ask(session, wanted.at(storage.url), _NOT_OUT_OF_A_STORE),
    )
    findings = [_accepts(itself), _refuses(refused), _through(through, itself, storage)]
    if not isinstance(through, Seen) or findings[-1].state == "failed":
        return findings
    findings.append(_again(await ask(session, wanted.at(storage.url)), through))
    if storage.purge is None:
        return [*findings, _UNTOLD]
    purged = await storage.purge(wanted.surrogate_key)
    if purged.state == "passed":
        purged = _forgotten(await ask(session, wanted.at(storage.url)), purged, itself, storage)
    return [*findings, purged]


#: What a storage has kept says nothing about its token, nor whether it reaches the service.
_NOT_OUT_OF_A_STORE = {"Cache-Control": "no-cache"}
_UNTOLD = Finding(
    "Purge",
    "warning",
    "This service tells nobody of changes: no edge is named to it.",
    "Where the storage is a storage edge, set edge_urls and edge_purge_token. Other storages serve what has changed or "
    "was closed until its lifetime ends, at most a minute for branches.",
)


async def _ask_service(
    session: aiohttp.ClientSession, storage: Storage, wanted: StaticObject, token: str
) -> Seen | Unreachable:
    return await ask(session, wanted.at(storage.service), {EXTERNAL_STORAGE_TOKEN_HEADER: token})


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
            return Finding(title, "passed", f"It answers {_shown(seen)}")
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
        text = f"It answers {_shown(seen)}"
        return Finding(
            title, "warning", text, "It did so out of its store, which says nothing about its token."
        )
    same = (
        "; the same bytes as from the service itself"
        if isinstance(itself, Seen) and itself.status == 200
        else ""
    )
    return Finding(title, "passed", f"It answers {_shown(seen)}{same}")


def _wrong_status(seen: Seen, itself: Seen | Unreachable, storage: Storage) -> tuple[str, str]:
    """What the storage's answer means, and what to do."""
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
        return Finding(title, "passed", f"It answers {_shown(seen)}")
    said = seen.cache_status or "it does not say what its cache did (no Cache-Status)"
    remedy = (
        "It works as a detour only: have the storage keep what the service allows it to (CDN-Cache-Control)."
    )
    return Finding(title, "warning", f"It answers {seen.status}, not out of its store: {said}", remedy)


def _forgotten(
    seen: Seen | Unreachable, purged: Finding, itself: Seen | Unreachable, storage: Storage
) -> Finding:
    """Whether what is asked for after a purge comes from the service."""
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
    """Whether a store answered alone, without having asked the service."""
    return seen.is_hit and "fwd=" not in seen.cache_status


def _shown(seen: Seen) -> str:
    told = f"; Cache-Status: {seen.cache_status}" if seen.cache_status else ""
    took = f"{seen.seconds * 1000:.0f} ms"
    return f"{seen.status} in {took}: {seen.size} bytes, SHA-256 {seen.sha256[:16]}…{told}"
