"""A server whose clock tests move, and a receiver whose answers tests choose, for tests of deliveries."""

import contextlib
import datetime
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any

import attrs
import pytest
from aiohttp.abc import AbstractResolver, ResolveResult

from api_server.outbound.client import RESOLVER
from api_server.status_checks.dispatcher import DISPATCHER, RANDOM, Dispatcher
from api_server.web.context import SERVICES
from tests.api_server.status_checks.receiver import Receiver, running_receiver
from tests.support.clock import MovedClock
from tests.support.forge import Answer, Forge, Person, SharedForges
from tests.support.merge_requests import commit, new_project, open_merge_request

#: An address to which nothing is sent.
ELSEWHERE = "http://203.0.113.7"


@attrs.define
class NamedHosts(AbstractResolver):
    """A resolver that resolves only the names that a test adds."""

    addresses: dict[str, list[str]] = attrs.field(factory=dict)

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        if host not in self.addresses or family not in (socket.AF_UNSPEC, socket.AF_INET):
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [
            ResolveResult(hostname=host, host=address, port=port, family=socket.AF_INET, proto=0, flags=0)
            for address in self.addresses[host]
        ]

    async def close(self) -> None:
        """Do nothing: no resource is open."""


@attrs.define
class Lab:
    """A server that sends deliveries only on request (`deliver`), at the time of `clock`."""

    forge: Forge
    clock: MovedClock
    names: NamedHosts
    alice: Person
    project: dict[str, Any]

    async def deliver(self, **moved: float) -> None:
        """Move the clock, then send all deliveries that are due."""
        self.clock.move(**moved)
        await self.dispatcher.deliver_due()

    @property
    def dispatcher(self) -> Dispatcher:
        return self.forge.server.app[SERVICES][DISPATCHER]

    async def check(self, url: str, name: str = "QA", **values: Any) -> dict[str, Any]:
        made = await self.alice.api.post(self.checks, {"name": name, "external_url": url} | values)
        assert made.status == 201, made
        return dict(made.body)

    async def merge_request(self, *arguments: Any, **values: Any) -> dict[str, Any]:
        return await open_merge_request(self.alice, self.project, *arguments, **values)

    @property
    def path(self) -> str:
        return f"/projects/{self.project['id']}"

    @property
    def checks(self) -> str:
        return f"{self.path}/external_status_checks"

    def one(self, merge_request: dict[str, Any]) -> str:
        return f"{self.path}/merge_requests/{merge_request['iid']}"

    async def respond(
        self, merge_request: dict[str, Any], check: dict[str, Any], status: str, **values: Any
    ) -> Answer:
        body = {"sha": merge_request["sha"], "external_status_check_id": check["id"], "status": status}
        return await self.alice.api.post(f"{self.one(merge_request)}/status_check_responses", body | values)

    async def deliveries(self, check: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the deliveries of a check with their attempts, oldest first."""
        base = f"{self.checks}/{check['id']}/deliveries"
        listed = await self.alice.api.get(f"{base}?sort=asc&per_page=100")
        return [(await self.alice.api.get(f"{base}/{one['id']}")).body for one in listed.body]

    async def shown(self, check: dict[str, Any]) -> dict[str, Any]:
        return dict((await self.alice.api.get(f"{self.checks}/{check['id']}")).body)


def install_doubles(app: Any) -> None:
    """Install a clock that tests move, hosts that they name, and retries without jitter."""
    app[SERVICES].clock = MovedClock()
    app[SERVICES][RANDOM] = lambda: 0.0
    app[SERVICES][RESOLVER] = NamedHosts()


async def lab_on(forge: Forge) -> Lab:
    """Return a lab on a server with these doubles. The clock shows the current time, and no host has a name."""
    clock, names = forge.server.app[SERVICES].clock, forge.server.app[SERVICES][RESOLVER]
    clock.now, names.addresses = datetime.datetime.now(datetime.UTC), {}
    alice = await forge.user("alice")
    return Lab(forge, clock, names, alice, await new_project(forge, alice))


@pytest.fixture
def new_lab(
    shared_forge: SharedForges,
) -> Callable[..., contextlib.AbstractAsyncContextManager[Lab]]:
    """A function that opens a lab on a shared server: `async with new_lab(allow_local_requests=False) as lab`. At the
    end of the block, all checks and deliveries are deleted."""

    @contextlib.asynccontextmanager
    async def opened(**settings: Any) -> AsyncIterator[Lab]:
        chosen = {"allow_local_requests": True} | settings
        lab = await lab_on(await shared_forge(change_app=install_doubles, **chosen))
        try:
            yield lab
        finally:
            await lab.dispatcher.drop()
            async with lab.forge.database.transaction() as transaction:
                await transaction.run("DELETE FROM external_status_checks")

    return opened


@pytest.fixture
async def lab(new_lab: Any) -> AsyncIterator[Lab]:
    async with new_lab() as made:
        yield made


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with running_receiver() as running:
        yield running


@pytest.fixture
async def alice(forge: Forge) -> Person:
    return await forge.user("alice")


@pytest.fixture
async def project(forge: Forge, alice: Person) -> dict[str, Any]:
    """A project without a commit: it has no branches, and no protected ones."""
    return await forge.project(alice)


@pytest.fixture
def checks(project: dict[str, Any]) -> str:
    return f"/projects/{project['id']}/external_status_checks"


async def protect(person: Person, project: dict[str, Any], name: str) -> dict[str, Any]:
    made = await person.api.post(f"/projects/{project['id']}/protected_branches", {"name": name})
    assert made.status == 201, made
    return dict(made.body)


@pytest.fixture
async def merge_request(alice: Person, project: dict[str, Any]) -> dict[str, Any]:
    await commit(alice.api, project, "main", "README.md")
    return await open_merge_request(alice, project)


@pytest.fixture
def one(project: dict[str, Any], merge_request: dict[str, Any]) -> str:
    return f"/projects/{project['id']}/merge_requests/{merge_request['iid']}"


async def new_check(
    person: Person, project: dict[str, Any], name: str = "QA", **values: Any
) -> dict[str, Any]:
    wanted = {"name": name, "external_url": f"{ELSEWHERE}/{name}"} | values
    made = await person.api.post(f"/projects/{project['id']}/external_status_checks", wanted)
    assert made.status == 201, made
    return dict(made.body)


async def statuses(person: Person, one: str) -> list[tuple[str, str]]:
    answer = await person.api.get(f"{one}/status_checks")
    assert answer.status == 200, answer
    return [(check["name"], check["status"]) for check in answer.body]
