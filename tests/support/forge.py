"""A running API server for tests, and functions that call it and create what a test needs.

Tests share one server and one database. Each test creates users, groups and projects of its own, with names that are
new each time, so that tests do not affect each other.
"""

import asyncio
import contextlib
import functools
import itertools
import json
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import attrs
from aiohttp import web
from aiohttp.test_utils import TestServer
from pygit2 import Repository
from yarl import URL

from api_server.accounts import tokens, users
from api_server.accounts.instance_settings import current
from api_server.app import create_app, endpoint, served
from api_server.ci.identity.keys import new_key
from api_server.git.repositories import REPOSITORIES
from api_server.settings import Settings
from api_server.state import driver, secrets
from api_server.state.audit_trail import Author
from api_server.state.database import Database
from api_server.web.context import SERVICES
from api_server.web.routes import Role
from common.serving import serving
from tests.support import answered, costs
from tests.support.ports import free_port

ROOT_TOKEN = "flpat-root-of-the-tests"
#: The administrator, on this machine.
_ROOT = Author(id=1, name="Administrator", email="root@localhost", username="root", ip_address="127.0.0.1")
_numbers = itertools.count(1)


def new_name(prefix: str) -> str:
    """Return a name that is used nowhere else in this process."""
    return f"{prefix}-{next(_numbers)}"


@attrs.frozen
class Answer:
    """An answer; `body` is parsed if it is JSON, otherwise text."""

    status: int
    body: Any
    headers: Any


@attrs.frozen
class Client:
    """A client of the API with one token (None: without credentials)."""

    session: aiohttp.ClientSession
    base: str
    token: str | None = None

    async def request(self, method: str, path: str, *, expect: int | None = None, **options: Any) -> Answer:
        """Send a request; return the answer. Assert that it has the expected status, if one is given.

        `path` is below /api/v4; an absolute URL is used unchanged. Redirects are not followed.
        """
        headers = ({"PRIVATE-TOKEN": self.token} if self.token else {}) | options.pop("headers", {})
        url = path if path.startswith("http") else f"{self.base}/api/v4{path}"
        options.setdefault("allow_redirects", False)
        async with self.session.request(method, URL(url, encoded=True), headers=headers, **options) as got:
            is_json = got.content_type == "application/json" and method != "HEAD"
            answer = Answer(
                got.status, await (got.json() if is_json else got.text(errors="replace")), got.headers
            )
        assert expect in (None, answer.status), answer
        return answer

    async def get(self, path: str, **options: Any) -> Answer:
        return await self.request("GET", path, **options)

    async def until(
        self, path: str, condition: Callable[[Any], object] = bool, *, seconds: float = 30
    ) -> Any:
        """Repeat the request until the condition is true for the body (by default, until the body is not empty).
        Return the body."""
        async with asyncio.timeout(seconds):
            while not condition(body := (await self.get(path)).body):
                await asyncio.sleep(0.05)
        return body

    async def post(self, path: str, json: Any = None, **options: Any) -> Answer:
        return await self.request("POST", path, **({"json": json} if json is not None else {}), **options)

    async def put(self, path: str, json: Any = None, **options: Any) -> Answer:
        return await self.request("PUT", path, **({"json": json} if json is not None else {}), **options)

    async def patch(self, path: str, json: Any = None, **options: Any) -> Answer:
        return await self.request("PATCH", path, **({"json": json} if json is not None else {}), **options)

    async def delete(self, path: str, **options: Any) -> Answer:
        return await self.request("DELETE", path, **options)


@attrs.frozen
class Person:
    """A user with a token of the scope `api`."""

    id: int
    username: str
    email: str
    api: Client

    @property
    def token(self) -> str:
        return self.api.token or ""


@attrs.frozen
class Forge:
    """A running server. `root` is its administrator's client, `anonymous` has no credentials."""

    server: TestServer
    settings: Settings
    session: aiohttp.ClientSession

    @property
    def base(self) -> str:
        return self.settings.base_url

    @property
    def database(self) -> Database:
        """The server's database, for content that the API does not show."""
        return self.server.app[SERVICES].database

    def repository(self, project_id: int) -> Repository:
        """Return the project's repository, for direct access without the API."""
        return self.server.app[SERVICES][REPOSITORIES].open(project_id)

    def repository_path(self, project_id: int) -> Path:
        """Return the folder of the project's repository."""
        return self.server.app[SERVICES][REPOSITORIES].path(project_id)

    async def execute(self, statement: str, **parameters: Any) -> int:
        """Run a statement in a transaction of its own. Return the number of its rows."""
        async with self.database.transaction() as transaction:
            return await transaction.run(statement, **parameters)

    @contextlib.contextmanager
    def changed_settings(self, **settings: Any) -> Iterator[None]:
        """Change settings for the duration of the block, as SIGHUP does: only those in `Settings.reloaded`."""
        fixed = settings.keys() - Settings.reloaded
        assert not fixed, f"{sorted(fixed)} are read only when a server starts: use shared_forge"
        before = {name: getattr(self.settings, name) for name in settings}
        try:
            for name, value in settings.items():
                object.__setattr__(self.settings, name, value)
            yield
        finally:
            for name, value in before.items():
                object.__setattr__(self.settings, name, value)

    @property
    def root(self) -> Client:
        return Client(self.session, self.base, ROOT_TOKEN)

    @property
    def anonymous(self) -> Client:
        return Client(self.session, self.base)

    async def user(
        self,
        name: str = "user",
        *,
        scopes: tuple[str, ...] = ("api",),
        password: str | None = None,
        skip_confirmation: bool = True,
        **profile: Any,
    ) -> Person:
        """Create an account and a token as root does, but in one transaction. Two requests would take twice as long,
        and nearly every test begins with this."""
        services = self.server.app[SERVICES]
        username = new_name(name)
        limit = (await current(services)).default_projects_limit
        profile = {
            "name": username.title(),
            "email": f"{username}@example.org",
            "projects_limit": limit,
        } | profile
        if password:
            profile["password_hash"] = await asyncio.to_thread(services.vault.hash_password, password)
        user = users.NewUser(username=username, confirmed=skip_confirmation, **profile)
        async with services.database.transaction() as transaction:
            user_id = await users.create(services, transaction, user, _ROOT)
            token = tokens.NewToken(user_id=user_id, name="test", scopes=list(scopes))
            made = await tokens.create(transaction, token, username, user.name, _ROOT)
        api = Client(self.session, self.base, json.loads(made)["token"])
        return Person(user_id, username, user.email, api)

    async def token(self, user_id: int, scopes: tuple[str, ...] = ("api",), **values: Any) -> str:
        made = await self._made(
            f"/users/{user_id}/personal_access_tokens", {"name": "test", "scopes": list(scopes)} | values
        )
        return str(made["token"])

    async def group(self, owner: Person | None = None, **values: Any) -> dict[str, Any]:
        name = new_name("group")
        made = await self._made(
            "/groups", {"name": name.title(), "path": name, "visibility": "public"} | values
        )
        if owner:
            await self.member("groups", made["id"], owner, Role.OWNER)
        return made

    async def project(
        self, owner: Person | None = None, *, members: dict[Role, Person] | None = None, **values: Any
    ) -> dict[str, Any]:
        """Create a private project in its owner's namespace (root's without an owner), with members of the given
        roles."""
        name = new_name("project")
        client = owner.api if owner else self.root
        made = await client.post("/projects", {"name": name.title(), "path": name} | values)
        assert made.status == 201, made
        for role, person in (members or {}).items():
            await self.member("projects", made.body["id"], person, role)
        return dict(made.body)

    async def member(self, source: str, source_id: int, person: Person, role: Role) -> None:
        """Add a member; `source` is `groups` or `projects`."""
        await self._made(f"/{source}/{source_id}/members", {"user_id": person.id, "access_level": int(role)})

    async def new_member(
        self, source_id: int, role: Role, name: str = "user", *, source: str = "projects"
    ) -> Person:
        """Create a user who has this role in the project (or group)."""
        person = await self.user(name)
        await self.member(source, source_id, person, role)
        return person

    async def people(self, source_id: int, source: str = "projects") -> dict[str, Person]:
        """Create one user for each role in the project (or group); return them by the role's name, with a `stranger`
        who has no role."""
        found = {"stranger": await self.user("stranger")}
        for role in (Role.GUEST, Role.REPORTER, Role.DEVELOPER, Role.MAINTAINER, Role.OWNER):
            found[role.name.lower()] = person = await self.user(role.name.lower())
            await self.member(source, source_id, person, role)
        return found

    @contextlib.asynccontextmanager
    async def instance_settings(self, **values: Any) -> AsyncIterator[None]:
        """Change settings of the instance for the duration of the block, which may change more of them."""
        path = "/application/settings"
        before = (await self.root.get(path)).body
        try:
            changed = await self.root.put(path, values)
            assert changed.status == 200, changed
            yield
        finally:
            restored = await self.root.put(path, before)
            assert restored.status == 200, restored

    async def _made(self, path: str, values: dict[str, Any]) -> dict[str, Any]:
        answer = await self.root.post(path, values)
        assert answer.status == 201, answer
        return dict(answer.body)


#: One key for all servers of this process, because it takes long to create one.
identity_key = functools.cache(new_key)


def give_identity_key(database_url: str, data_dir: Path) -> None:
    """Store `identity_key` in a database that has no key."""
    with driver.blocking_connection(database_url) as connection, connection, connection.cursor() as cursor:
        key = identity_key()
        cursor.execute(
            "INSERT INTO identity_keys SELECT %s, %s, %s, to_timestamp(0), to_timestamp(0)"
            " WHERE NOT EXISTS (SELECT FROM identity_keys)",
            (key.kid, key.public, secrets.open_vault(data_dir).encrypt(key.private)),
        )


class ForgeServer(TestServer):
    """A server with the connection class of the real process, instead of aiohttp's site."""

    def __init__(self, app: web.Application, settings: Settings) -> None:
        super().__init__(app)
        self.served = served(app, endpoint(settings))
        self._serving = contextlib.AsyncExitStack()

    async def start_server(self, *_: object, **__: object) -> None:
        if self._root is None:
            self.host, self.port = await self._serving.enter_async_context(serving(self.served))
            self._root = URL.build(scheme="http", host=self.host, port=self.port)

    async def close(self) -> None:
        await self._serving.aclose()


@contextlib.asynccontextmanager
async def running_forge(
    database_url: str,
    data_dir: Path,
    change_app: Callable[[Any], None] | None = None,
    **settings: Any,
) -> AsyncIterator[Forge]:
    """Run a server on a free port with a migrated database; `settings` differ from the defaults of tests.

    `change_app(app)` may install doubles (a clock, a resolver) before the server starts.
    """
    port = free_port()
    defaults: dict[str, Any] = {
        "database_url": database_url,
        "data_dir": data_dir,
        "port": port,
        "root_token": ROOT_TOKEN,
        "database_pool": 5,
        "pipeline_rate_limit": 0,
        "lint_rate_limit": 0,
        "emails_per_user": 0,
        "hand_out_timeout": 3600,
        "shutdown_timeout": 5,
    }
    chosen = Settings(**defaults | settings)
    await asyncio.to_thread(secrets.ensure_key, database_url, data_dir)
    await asyncio.to_thread(give_identity_key, database_url, data_dir)
    app = create_app(chosen)
    app.middlewares.append(answered.note)
    if change_app:
        change_app(app)
    server = ForgeServer(app, chosen)
    async with server, aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        yield Forge(server, chosen, session)


@attrs.define
class SharedForges:
    """Running servers that tests share, by their settings. If there are `most`, the least recently used one is
    stopped, but none that was requested since the last `release`. Each has its own database from `new_database`, and
    its own folder from `new_folder`."""

    _new_database: Callable[[], contextlib.AbstractContextManager[str]]
    _new_folder: Callable[[], Path]
    most: int = 8
    #: The servers and the functions that stop them, by their settings, the least recently used one first.
    _running: dict[str, tuple[Forge, contextlib.AsyncExitStack]] = attrs.field(init=False, factory=dict)
    _in_use: set[str] = attrs.field(init=False, factory=set)

    async def __call__(self, **settings: Any) -> Forge:
        """Return the running server with these settings, which differ from the defaults of tests. It does background
        work only with `work=True`."""
        settings = {"work": False} | settings
        key = repr(sorted(settings.items()))
        self._in_use.add(key)
        if key not in self._running:
            with costs.shared():
                await self._start(key, settings)
        self._running[key] = self._running.pop(key)
        return self._running[key][0]

    async def _start(self, key: str, settings: dict[str, Any]) -> None:
        await self._make_room()
        async with contextlib.AsyncExitStack() as stack:
            url = stack.enter_context(self._new_database())
            forge = await stack.enter_async_context(running_forge(url, self._new_folder(), **settings))
            self._running[key] = forge, stack.pop_all()

    def release(self) -> None:
        """Allow to stop the servers that were requested until now: no test uses them any more."""
        self._in_use.clear()

    async def stop(self) -> None:
        """Stop all servers."""
        self.release()
        while self._running:
            await self._stop(next(iter(self._running)))

    async def _make_room(self) -> None:
        for key in [key for key in self._running if key not in self._in_use]:
            if len(self._running) >= self.most:
                await self._stop(key)

    async def _stop(self, key: str) -> None:
        _, stack = self._running.pop(key)
        await stack.aclose()
