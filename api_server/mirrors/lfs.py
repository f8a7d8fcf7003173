"""Upload of LFS objects to a mirror's target by the LFS batch API, before the refs that need them are pushed."""

import asyncio
from base64 import b64encode
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import attrs
import orjson
import structlog
from aiohttp.abc import AbstractResolver, AbstractStreamWriter
from aiohttp.payload import Payload
from multidict import CIMultiDict

from api_server.git.errors import GitError
from api_server.git.lfs_pointers import Pointer, pointers_in
from api_server.git.remote.access import SILENCE_SECONDS, Remote, sanitize
from api_server.git.repositories import REPOSITORIES
from api_server.mirrors import queries
from api_server.mirrors.queries import Mirror
from api_server.outbound.client import OUTGOING_POLICY, OUTGOING_SESSION, RESOLVER, PolicySource
from api_server.outbound.destinations import HTTP_SCHEMES, BlockedError, parse_destination, written_url
from api_server.outbound.policy import check_url
from api_server.services import Services
from api_server.state.objects import Objects


class NoLfsError(Exception):
    """The target does not support LFS."""


class LfsError(Exception):
    """No object can be uploaded to the target at present; the text is for the user."""


@attrs.frozen
class Action:
    """A request that the target asks for, to be sent with the given `header`."""

    href: str = attrs.field(repr=False)
    header: Mapping[str, str] = attrs.field(repr=False)


@attrs.frozen
class RequestedObject:
    """An object that the target lacks. A `verify` action is sent after the upload.

    If `authenticated`, the actions carry their own credentials and the mirror's are not added.
    """

    oid: str
    upload: Action
    verify: Action | None
    authenticated: bool


@attrs.frozen
class BatchAnswer:
    """The target's answer about some objects: the oids that it has (`present`), the uploads that it requests, and the
    reasons for the objects that it refuses, by oid."""

    present: frozenset[str]
    requested: tuple[RequestedObject, ...]
    refused: Mapping[str, str]


def read_answer(body: bytes, pointers: Sequence[Pointer]) -> BatchAnswer:
    """Return the part of the batch answer in `body` that concerns the objects in `pointers`.

    Raise `NoLfsError` if it is not such an answer, and `LfsError` if it requests an unsupported kind of transfer.
    """
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError:
        raise NoLfsError from None
    if not isinstance(document, dict) or not isinstance(document.get("objects"), list):
        raise NoLfsError
    if document.get("transfer", "basic") != "basic" or document.get("hash_algo", "sha256") != "sha256":
        raise LfsError("The target wants LFS objects in a way that is not supported.")
    answers = {answer.get("oid"): answer for answer in document["objects"] if _is_named(answer)}
    refused: dict[str, str] = {}
    requested: list[RequestedObject] = []
    present: set[str] = set()
    for pointer in pointers:
        match _read_object(pointer.oid, answers.get(pointer.oid)):
            case str() as problem:
                refused[pointer.oid] = problem
            case RequestedObject() as action:
                requested.append(action)
            case None:
                present.add(pointer.oid)
    return BatchAnswer(frozenset(present), tuple(requested), refused)


def message_in(body: bytes) -> str:
    """Return the reason in the body of an LFS error, or an empty text if there is none."""
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError:
        return ""
    message = document.get("message") if isinstance(document, dict) else None
    return message if isinstance(message, str) else ""


def _is_named(answer: Any) -> bool:
    return isinstance(answer, dict) and isinstance(answer.get("oid"), str)


def _read_object(oid: str, answer: Mapping[str, Any] | None) -> RequestedObject | str | None:
    if answer is None:
        return "the target said nothing about it"
    if error := answer.get("error"):
        message = error.get("message") if isinstance(error, dict) else None
        return message if isinstance(message, str) and message else "the target refused it"
    actions = answer.get("actions") or {}
    if not isinstance(actions, dict):
        return "the target's answer is not understood"
    if "upload" not in actions:
        return None
    upload, verify = _action(actions["upload"]), _action(actions.get("verify"))
    if upload is None or (verify is None and actions.get("verify")):
        return "the target's answer is not understood"
    return RequestedObject(oid, upload, verify, answer.get("authenticated") is True)


def _action(document: Any) -> Action | None:
    if not isinstance(document, dict) or not isinstance(document.get("href"), str):
        return None
    header = document.get("header") or {}
    if not isinstance(header, dict) or not all(isinstance(value, str) for value in header.values()):
        return None
    return Action(document["href"], header)


MEDIA_TYPE = "application/vnd.git-lfs+json"
#: Maximum number of objects in one batch request, the same as in git-lfs.
BATCH_SIZE = 100
#: Maximum number of concurrent uploads.
AT_ONCE = 4
#: Number of consecutive connection failures after which a run gives up.
MAX_FAILURES = 4
#: Maximum size of an answer of the target.
ANSWER_BYTES = 4 * 2**20
MESSAGE_LENGTH = 300
#: Statuses that servers without LFS answer to a batch request.
_NO_LFS = frozenset({404, 405, 410, 501})
#: Headers that the HTTP client sets; an action cannot override them.
_OF_THE_CONNECTION = ("Connection", "Content-Length", "Host", "Transfer-Encoding")
_NO_TIMEOUT = aiohttp.ClientTimeout(total=None, connect=10)


@attrs.frozen
class Stored:
    """An object of the project, with its key in the object store."""

    pointer: Pointer
    key: str


@attrs.define
class Report:
    """The result of uploads: the oids that the target has now, and the reasons why others could not be uploaded."""

    arrived: set[str] = attrs.field(factory=set)
    problems: list[str] = attrs.field(factory=list)
    #: Number of connections that have failed since the target last answered.
    failures: int = 0

    @property
    def ended(self) -> bool:
        """Whether to give up: after that many failures, the target itself and not a single object is the cause."""
        return self.failures >= MAX_FAILURES


@attrs.frozen
class LfsTarget:
    """The LFS server of the repository `remote`. Addresses are checked for each connection."""

    remote: Remote
    objects: Objects
    session: aiohttp.ClientSession
    policy: PolicySource
    resolver: AbstractResolver

    async def bring(self, objects: Sequence[Stored], report: Report) -> None:
        """Upload the objects that the target lacks. Do nothing if the target does not support LFS.

        Results are added to `report` as they occur, so it is right even after a cancellation.
        """
        for start in range(0, len(objects), BATCH_SIZE):
            some = {stored.pointer.oid: stored for stored in objects[start : start + BATCH_SIZE]}
            try:
                answer = await self._ask([stored.pointer for stored in some.values()])
            except NoLfsError:
                return
            except LfsError as problem:
                report.problems.append(str(problem))
                return
            report.arrived |= answer.present
            for oid, reason in answer.refused.items():
                report.problems.append(f"{oid}: {self._clean(reason)}")
            remaining = iter(answer.requested)
            await asyncio.gather(*(self._fulfil(remaining, some, report) for _ in range(AT_ONCE)))
            if report.ended:
                return

    async def _ask(self, pointers: Sequence[Pointer]) -> BatchAnswer:
        """Ask the target which objects it lacks. Raise `NoLfsError` and `LfsError`."""
        question = {
            "operation": "upload",
            "transfers": ["basic"],
            "objects": [attrs.asdict(pointer) for pointer in pointers],
            "hash_algo": "sha256",
        }
        batch = Action(f"{lfs_url(self.remote.url)}/objects/batch", {})
        status, body = await self._send_json(batch, question, authenticated=False)
        if status in _NO_LFS:
            raise NoLfsError
        if status // 100 != 2:
            raise LfsError(self._refusal(status, body))
        return read_answer(body, pointers)

    async def _fulfil(
        self, remaining: Iterable[RequestedObject], some: Mapping[str, Stored], report: Report
    ) -> None:
        for requested in remaining:
            if report.ended:
                return
            try:
                problem = await self._bring_one(requested, some[requested.oid])
                report.failures = 0
            except LfsError as failure:
                problem = str(failure)
                report.failures += 1
            if problem is None:
                report.arrived.add(requested.oid)
            else:
                report.problems.append(f"{requested.oid}: {problem}")

    async def _bring_one(self, requested: RequestedObject, stored: Stored) -> str | None:
        """Upload an object. Return the target's reason for a refusal, or None. Raise `LfsError` without an answer."""
        status, body = await self._send(
            "PUT",
            requested.upload,
            {"Content-Type": "application/octet-stream"},
            lambda silence: _Content(self.objects, stored, silence),
            authenticated=requested.authenticated,
        )
        if status // 100 == 2 and requested.verify is not None:
            pointer = attrs.asdict(stored.pointer)
            status, body = await self._send_json(
                requested.verify, pointer, authenticated=requested.authenticated
            )
        return None if status // 100 == 2 else self._refusal(status, body)

    async def _send_json(self, action: Action, value: object, *, authenticated: bool) -> tuple[int, bytes]:
        headers = {"Accept": MEDIA_TYPE, "Content-Type": MEDIA_TYPE}
        body = orjson.dumps(value)
        return await self._send("POST", action, headers, lambda _silence: body, authenticated=authenticated)

    async def _send(
        self,
        method: str,
        action: Action,
        defaults: Mapping[str, str],
        data: Callable[[asyncio.Timeout], Payload | bytes],
        *,
        authenticated: bool,
    ) -> tuple[int, bytes]:
        """Return the status and body of the answer. Raise `LfsError`, without the URL, which may contain secrets."""
        try:
            await check_url(action.href, await self.policy(), self.resolver, schemes=HTTP_SCHEMES)
            headers = self._headers(action, defaults, authenticated=authenticated)
            async with (
                asyncio.timeout(SILENCE_SECONDS) as silence,
                self.session.request(
                    method,
                    written_url(action.href),
                    data=data(silence),
                    headers=headers,
                    allow_redirects=False,
                    timeout=_NO_TIMEOUT,
                ) as response,
            ):
                return response.status, await _beginning(response)
        except BlockedError as problem:
            raise LfsError(f"An address that the target names is blocked: {problem}") from None
        except TimeoutError:
            raise LfsError("The target took too long.") from None
        except (aiohttp.ClientError, OSError, ValueError):
            raise LfsError("The connection to the target failed.") from None

    def _headers(
        self, action: Action, defaults: Mapping[str, str], *, authenticated: bool
    ) -> CIMultiDict[str]:
        """Return the request's headers. The mirror's credentials are sent only to the mirror's own server, and only if
        the action has none."""
        headers = CIMultiDict(action.header)
        for name in _OF_THE_CONNECTION:
            headers.popall(name, None)
        for name, value in defaults.items():
            headers.setdefault(name, value)
        has_credentials = bool(self.remote.user or self.remote.password)
        if has_credentials and not authenticated and _server(action.href) == _server(self.remote.url):
            pair = f"{self.remote.user or ''}:{self.remote.password or ''}"
            headers.setdefault("Authorization", f"Basic {b64encode(pair.encode()).decode()}")
        return headers

    def _refusal(self, status: int, body: bytes) -> str:
        message = self._clean(message_in(body))
        return f"The target answered {status}" + (f": {message}" if message else ".")

    def _clean(self, text: str) -> str:
        """Return a text of the target as a single short line without credentials."""
        plain = " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
        return sanitize(plain, user=self.remote.user, password=self.remote.password)[:MESSAGE_LENGTH]


class _Content(Payload):
    """An object's bytes as a request body, read from the object store each time it is sent.

    Every chunk restarts the timeout `silence`, which therefore limits only the time without progress.
    """

    def __init__(self, objects: Objects, stored: Stored, silence: asyncio.Timeout) -> None:
        super().__init__(stored, content_type="application/octet-stream")
        self._objects = objects
        self._stored = stored
        self._silence = silence
        self._size = stored.pointer.size

    def decode(self, _encoding: str = "utf-8", _errors: str = "strict") -> str:
        raise TypeError("an object is not text")

    async def write(self, writer: AbstractStreamWriter) -> None:
        loop = asyncio.get_running_loop()
        async with aclosing(self._objects.read(self._stored.key, 0, self._stored.pointer.size)) as chunks:
            async for chunk in chunks:
                self._silence.reschedule(loop.time() + SILENCE_SECONDS)
                await writer.write(chunk)


def lfs_url(repository_url: str) -> str:
    """Return the URL of a repository's LFS server (LFS server discovery): `https://host/group/app.git/info/lfs`."""
    parts = urlsplit(repository_url)
    path = parts.path.rstrip("/")
    path = path if path.endswith(".git") else f"{path}.git"
    return parts._replace(path=f"{path}/info/lfs", query="", fragment="").geturl()


def _server(url: str) -> object:
    return parse_destination(url, HTTP_SCHEMES)


async def _beginning(response: aiohttp.ClientResponse) -> bytes:
    """Return the answer's body. Raise `LfsError` if it is too large."""
    body = bytearray()
    while chunk := await response.content.read(64 * 1024):
        body += chunk
        if len(body) > ANSWER_BYTES:
            raise LfsError("The target's answer is too large.")
    return bytes(body)


log = structlog.get_logger(__name__)

#: Maximum number of problems in the text for the user.
REPORTED_PROBLEMS = 10
TOOK_TOO_LONG = "The LFS objects took too long; the next run goes on with them."
NOT_SEARCHED = "The commits could not be searched for LFS pointers."


@attrs.frozen
class LfsTransfer:
    """The upload of LFS objects in one run of `mirror`, limited to `time_limit` seconds."""

    services: Services
    mirror: Mirror
    time_limit: float

    async def __call__(
        self, remote: Remote, pushed: Collection[str], remote_ids: Collection[str]
    ) -> str | None:
        """Upload the objects that `remote` lacks. Return a text for the user about those that failed, or None.

        `pushed` are the ids that the target's refs are about to get, `remote_ids` the ids that they have. Commits that
        the target already had are searched once; objects that failed are recorded for the next run.
        """
        if not remote.url.startswith(tuple(f"{scheme}://" for scheme in HTTP_SCHEMES)):
            return None
        debt = await queries.lfs_debt(self.services.database, self.mirror)
        if debt is None or (debt.lfs_followed and not debt.owes and not pushed):
            return None
        tips, excluded = (pushed, remote_ids) if debt.lfs_followed else ({*pushed, *remote_ids}, ())
        new: set[str] | None = None
        report = Report()
        try:
            async with asyncio.timeout(self.time_limit):
                new = await self._pointers(tips, excluded)
                if debt.lfs_followed and not debt.owes and not new:
                    return None
                await self._bring(remote, new, report)
        except TimeoutError:
            report.problems.append(TOOK_TOO_LONG)
        except GitError:
            log.exception("LFS pointers could not be searched for", mirror=self.mirror.id)
            report.problems.append(NOT_SEARCHED)
        await self._note(new, report)
        return self._summary(report)

    async def _pointers(self, tips: Collection[str], excluded: Collection[str]) -> set[str]:
        repository = self.services[REPOSITORIES].path(self.mirror.project_id)
        return {pointer.oid for pointer in await pointers_in(repository, tips, excluded)}

    async def _bring(self, remote: Remote, new: set[str], report: Report) -> None:
        rows = await queries.owed_objects(self.services.database, self.mirror, new)
        stored = [Stored(Pointer(row.oid, row.size), row.object_key) for row in rows]
        services = self.services
        target = LfsTarget(
            remote,
            services.objects,
            services[OUTGOING_SESSION],
            services[OUTGOING_POLICY],
            services[RESOLVER],
        )
        await target.bring(stored, report)

    async def _note(self, new: set[str] | None, report: Report) -> None:
        """Record the result, so that the next run does not search these commits again. Call it before the push."""
        async with self.services.database.transaction() as transaction:
            if new is None:
                await queries.search_all_again(transaction, self.mirror)
            else:
                await queries.note_lfs_objects(
                    transaction, self.mirror, arrived=report.arrived, owed=new - report.arrived
                )

    def _summary(self, report: Report) -> str | None:
        if not report.problems:
            return None
        problems = report.problems[:REPORTED_PROBLEMS]
        if (more := len(report.problems) - REPORTED_PROBLEMS) > 0:
            problems.append(f"... and {more} more")
        log.warning("LFS objects did not get to the target", mirror=self.mirror.id, problems=problems)
        return "\n".join(problems)
