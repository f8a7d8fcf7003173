"""Answers of the LFS API: its media type, its errors, and where objects are brought and fetched."""

from collections.abc import Mapping
from typing import Any

import orjson
from aiohttp import web
from aiohttp.typedefs import Handler

from api_server.code.lfs.batch import Refusal
from api_server.code.quotas import QuotaExceeded
from api_server.git.lfs_pointers import Pointer
from api_server.state.errors import Unavailable
from api_server.web.errors import BodyRefused, told_to_come_later
from common.concurrency import TooBusy

MEDIA_TYPE = "application/vnd.git-lfs+json"
_TOLD = ("WWW-Authenticate", "Content-Range")


def lfs_json(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    return web.Response(body=orjson.dumps(value), status=status, content_type=MEDIA_TYPE, headers=headers)


def lfs_errors(handler: Handler) -> Handler:
    """What `handler` refuses, told as the LFS API tells errors: `{"message": "..."}`."""

    async def answer(request: web.Request) -> web.StreamResponse:
        try:
            return await handler(request)
        except Refusal as problem:
            return lfs_json({"message": str(problem)}, problem.status)
        except QuotaExceeded as problem:
            return lfs_json({"message": str(problem)}, 507)  # Insufficient Storage, as the LFS API has it
        except BodyRefused as problem:
            return lfs_json({"message": str(problem)}, problem.status, problem.headers)
        except (Unavailable, TooBusy) as problem:
            if request.writer.output_size:  # an object that breaks off: nothing can be told any more
                raise ConnectionResetError from problem
            return lfs_json({"message": "503 Service Unavailable"}, 503, told_to_come_later(problem))
        except web.HTTPClientError as refusal:
            headers = {name: refusal.headers[name] for name in _TOLD if name in refusal.headers}
            if challenge := headers.get("WWW-Authenticate"):
                headers["LFS-Authenticate"] = challenge
            return lfs_json({"message": (refusal.text or "").strip()}, refusal.status, headers)

    return answer


def with_actions(wanted: Pointer, **actions: Mapping[str, Any]) -> dict[str, Any]:
    """An object of a batch answer; without actions, there is nothing to do."""
    answer: dict[str, Any] = {"oid": wanted.oid, "size": wanted.size}
    return answer | ({"authenticated": True, "actions": actions} if actions else {})


def with_error(wanted: Pointer, code: int, text: str) -> dict[str, Any]:
    """An object of a batch answer that cannot be transferred."""
    return {"oid": wanted.oid, "size": wanted.size, "error": {"code": code, "message": text}}


class Links:
    """The places of one project's objects, for the client that asked.

    Clients send to them what `header` says and nothing of their own, so they get their own credentials back.
    """

    def __init__(self, request: web.Request, repository_url: str) -> None:
        self._base = f"{repository_url}/info/lfs"
        credentials = request.headers.get("Authorization")
        self._header = {"Authorization": credentials} if credentials else {}

    def download(self, wanted: Pointer) -> dict[str, Any]:
        return self._link(f"objects/{wanted.oid}")

    def upload(self, wanted: Pointer) -> dict[str, Any]:
        return self._link(
            f"objects/{wanted.oid}/{wanted.size}", **{"Content-Type": "application/octet-stream"}
        )

    def verify(self) -> dict[str, Any]:
        return self._link("verify")

    def _link(self, path: str, **header: str) -> dict[str, Any]:
        return {"href": f"{self._base}/{path}", "header": self._header | header}
