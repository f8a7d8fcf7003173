"""Short ways to the controls of a server for tests."""

from typing import Any

import attrs

from tests.support.forge import Answer, Forge, Person


@attrs.frozen
class Controls:
    """`/-/testing` of `forge`, as `whose` requests are looked at; nobody needs a token."""

    forge: Forge
    whose: Person

    async def ask(self, method: str, path: str, **options: Any) -> Answer:
        return await self.forge.anonymous.request(method, f"{self.forge.base}/-/testing{path}", **options)

    async def requests(self, **filters: object) -> list[dict[str, Any]]:
        """Those of the one user."""
        wanted = {"user": self.whose.username} | filters
        query = "&".join(f"{name}={value}" for name, value in wanted.items())
        answer = await self.ask("GET", f"/requests?{query}")
        assert answer.status == 200, answer
        return list(answer.body)

    async def fail(self, **values: Any) -> dict[str, Any]:
        """Orders a failure that meets only the one user, unless `user` says otherwise."""
        answer = await self.ask("POST", "/failures", json={"user": self.whose.username} | values)
        assert answer.status == 201, answer
        return dict(answer.body)

    async def left(self, failure: dict[str, Any]) -> int:
        """How many requests a failure still waits for."""
        listed = await self.ask("GET", "/failures")
        return next(int(one["left"]) for one in listed.body if one["id"] == failure["id"])
