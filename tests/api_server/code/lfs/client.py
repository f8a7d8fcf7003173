"""An LFS client that sends plain requests, for tests."""

import base64
import hashlib
from typing import Any

import aiohttp
import attrs
import orjson

from tests.support.forge import Answer, Forge, Person

MEDIA_TYPE = "application/vnd.git-lfs+json"


def oid_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def named(content: bytes) -> dict[str, Any]:
    """Return an object in the format of batch requests."""
    return {"oid": oid_of(content), "size": len(content)}


def pointer_to(content: bytes) -> str:
    return f"version https://git-lfs.github.com/spec/v1\noid sha256:{oid_of(content)}\nsize {len(content)}\n"


@attrs.frozen
class LfsClient:
    """A client of one project's LFS API; without a `token` it is anonymous."""

    forge: Forge
    path: str
    token: str | None = None

    @classmethod
    def of(cls, forge: Forge, project: dict[str, Any], person: Person | None = None) -> "LfsClient":
        return cls(forge, project["path_with_namespace"], person.token if person else None)

    @property
    def url(self) -> str:
        return f"{self.forge.base}/{self.path}.git/info/lfs"

    @property
    def authorization(self) -> dict[str, str]:
        if self.token is None:
            return {}
        return {"Authorization": "Basic " + base64.b64encode(f"anybody:{self.token}".encode()).decode()}

    async def request(self, method: str, url: str, **options: Any) -> Answer:
        options["headers"] = self.authorization | options.get("headers", {})
        async with self.forge.session.request(
            method, url if url.startswith("http") else self.url + url, **options
        ) as answer:
            body = await answer.read()
            parsed = orjson.loads(body) if answer.content_type == MEDIA_TYPE and body else body
            return Answer(answer.status, parsed, answer.headers)

    async def send_json(self, url: str, value: Any) -> Answer:
        return await self.request(
            "POST", url, data=orjson.dumps(value), headers={"Content-Type": MEDIA_TYPE, "Accept": MEDIA_TYPE}
        )

    async def batch(self, operation: str, *objects: dict[str, Any], **more: Any) -> Answer:
        return await self.send_json(
            "/objects/batch", {"operation": operation, "objects": list(objects)} | more
        )

    async def act(self, action: dict[str, Any], method: str, **options: Any) -> Answer:
        """Send the request of an action in a batch answer, with only its header."""
        options["headers"] = options.get("headers", {}) | action["header"]
        async with (
            aiohttp.ClientSession() as session,
            session.request(method, action["href"], **options) as answer,
        ):
            return Answer(answer.status, await answer.read(), answer.headers)

    async def bring(self, content: bytes) -> None:
        """Upload an object as git-lfs does."""
        answered = (await self.batch("upload", named(content))).body["objects"][0]
        assert (await self.act(answered["actions"]["upload"], "PUT", data=content)).status == 200
        verify = answered["actions"]["verify"]
        assert (await self.act(verify, "POST", data=orjson.dumps(named(content)))).status == 200


CONTENT = b"a large file\n" * 100


@attrs.frozen
class Place:
    owner: Person
    project: dict[str, Any]
    client: LfsClient
