"""The service that is broken: API server, edge and PostgreSQL on loopback, each started again whenever it ends."""

import asyncio
import contextlib
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import aiohttp
import attrs
import psycopg2

from forgelet.local import cluster_folders
from forgelet.local.api_client import Api, answers
from forgelet.local.data_directory import DataDirectory
from forgelet.local.embedded_postgres import SUPERUSER, Cluster
from scripts.abuse.ground import CHECKOUT, new_user
from scripts.faults import disks
from scripts.faults.client import TIMEOUT, Client
from scripts.faults.ledger import Ledger
from scripts.faults.names import NAME, NameServer, name_server
from scripts.faults.object_store import object_store
from scripts.faults.object_store import settings as object_store_settings
from scripts.faults.outside import Outside, outside
from scripts.faults.processes import Kept, KeptPostgres, KeptProgram, until
from scripts.faults.proxy import Proxy
from tests.support.ports import free_port

READY_SECONDS = 60.0
OWNER = "alice"
#: After which a job whose runner never came back goes to another; a minute is long to wait for at the end of a run.
HAND_OUT_SECONDS = 15


@attrs.frozen
class Ground:
    """What faults break and the load asks. `owner` has all projects; `stranger` at the edge is nobody."""

    folder: Path
    data: DataDirectory
    ledger: Ledger
    api: KeptProgram
    edge: KeptProgram
    postgres: Kept
    #: Between the API server and PostgreSQL.
    database: Proxy
    outside: Outside
    #: The API server's own, where it could be given one.
    names: NameServer | None
    #: Between the API server and S3; None where objects are files.
    object_store: Proxy | None
    root: Client
    owner: Client
    nobody: Client
    stranger: Client

    def git_url(self, project: str) -> str:
        """Of a project's repository, for its owner."""
        host = urlsplit(self.owner.base).netloc
        return f"http://{OWNER}:{self.owner.token}@{host}/{OWNER}/{project}.git"

    @property
    def kept(self) -> tuple[Kept, ...]:
        return self.api, self.edge, self.postgres

    async def serves(self) -> bool:
        """Whether the API server says within a minute that it is ready."""
        return await _are_ready(self.root)

    async def ready(self) -> bool:
        """Whether both processes do."""
        return await _are_ready(self.root, self.stranger)


async def _are_ready(*clients: Client) -> bool:
    urls = [f"{client.base.removesuffix('/api/v4')}/-/readiness" for client in clients]
    deadline = asyncio.get_running_loop().time() + READY_SECONDS
    while not all([await asyncio.to_thread(answers, url) for url in urls]):
        if asyncio.get_running_loop().time() > deadline:
            return False
        await asyncio.sleep(0.2)
    return True


@contextlib.asynccontextmanager
async def prepared(tell: Callable[[str], None], *, with_s3: bool = False) -> AsyncIterator[Ground]:
    """Starts everything, with a user and her token; ends all of it. Objects are files, or in an S3 of moto's."""
    async with contextlib.AsyncExitStack() as stack:
        data = stack.enter_context(_folders())
        http = await stack.enter_async_context(
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=TIMEOUT)
        )
        ledger = Ledger()
        names = await stack.enter_async_context(name_server())
        around = await stack.enter_async_context(outside(NAME if names else "127.0.0.1"))
        store = await stack.enter_async_context(object_store(data.part("logs"))) if with_s3 else None
        ports = {name: free_port() for name in ("api", "edge", "database")}
        tell("Starting PostgreSQL, the API server and the storage edge ...")
        postgres, proxy = await _database(stack, data, ports["database"])
        api, edge = _programs(data, ports, postgres.cluster)
        if names is not None:
            api.command = names.command(data.path.parent, api.command)
        if store is not None:
            api.environment |= object_store_settings(store)
        for program in (api, edge):
            await stack.enter_async_context(program)
        urls = {name: f"http://127.0.0.1:{ports[name]}" for name in ("api", "edge")}

        def client(name: str, token: str = "") -> Client:
            if name == "edge":
                return Client(http, name, urls[name], ledger, may_say={502, 504})
            return Client(http, name, f"{urls[name]}/api/v4", ledger, token)

        root = client("api", data.secret("root-token", prefix="flpat-"))
        ground = Ground(
            folder=data.path.parent,
            data=data,
            ledger=ledger,
            api=api,
            edge=edge,
            postgres=postgres,
            database=proxy,
            outside=around,
            names=names,
            object_store=store,
            root=root,
            owner=root,
            nobody=client("api"),
            stranger=client("edge"),
        )
        _started(api, await ground.serves())
        token = await asyncio.to_thread(_furnished, Api(urls["api"], root.token), urls["edge"], data)
        _started(api, await ground.ready())  # the edge is, once the service knows its token
        yield attrs.evolve(ground, owner=client("api", token))


def _started(api: Kept, is_ready: bool) -> None:
    if not is_ready:
        raise RuntimeError(f"The service did not start: {api.newest_log().read_text()[-3000:]}")


@contextlib.contextmanager
def _folders() -> Iterator[DataDirectory]:
    """On small disks of their own where we are root."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fgl-faults-", dir="/tmp")))
        folder.chmod(0o711)  # PostgreSQL may have to run as another account
        data = DataDirectory(folder / "data")
        stack.enter_context(data.opened())
        for name, size in disks.SIZES.items():
            stack.enter_context(disks.mounted(data.part(name), size))
        yield data


async def _database(
    stack: contextlib.AsyncExitStack, data: DataDirectory, port: int
) -> tuple[KeptPostgres, Proxy]:
    """PostgreSQL, which runs, and the proxy at that port through which the API server reaches it."""
    directory = cluster_folders.made(data.path / "postgres")
    stack.enter_context(disks.mounted(directory, disks.POSTGRES_SIZE, like=directory))
    cluster = Cluster(directory, data.secret("postgres-password"), durable=True)
    thread = stack.enter_context(ThreadPoolExecutor(max_workers=1))

    def socket() -> str:
        (folder,) = parse_qs(urlsplit(cluster.url()).query)["host"]
        return f"{folder}/.s.PGSQL.5432"

    proxy = await stack.enter_async_context(Proxy(port, socket))
    postgres = KeptPostgres(data.part("logs"), cluster, thread)
    await stack.enter_async_context(postgres)
    if not await until(lambda: postgres.pid, READY_SECONDS):
        raise RuntimeError(f"PostgreSQL did not start: {postgres.newest_log().read_text()}")
    _bounded(cluster)
    return postgres, proxy


def _bounded(cluster: Cluster) -> None:
    """PostgreSQL's log of what it writes fits on its small disk."""
    with contextlib.closing(psycopg2.connect(cluster.url("postgres", SUPERUSER))) as connection:
        connection.autocommit = True
        for name, value in (("max_wal_size", "128MB"), ("min_wal_size", "32MB")):
            connection.cursor().execute(f"ALTER SYSTEM SET {name} = '{value}'")
        connection.cursor().execute("SELECT pg_reload_conf()")


def _programs(
    data: DataDirectory, ports: Mapping[str, int], cluster: Cluster
) -> tuple[KeptProgram, KeptProgram]:
    parts = urlsplit(cluster.url())
    database_url = parts._replace(netloc=f"{parts.username}:{parts.password}@127.0.0.1:{ports['database']}")
    purging = data.file_with_secret("edge-purge-token")
    api = {
        "DATABASE_URL": database_url._replace(query="").geturl(),
        "ROOT_TOKEN_FILE": data.file_with_secret("root-token", prefix="flpat-"),
        "EXTERNAL_URL": f"http://127.0.0.1:{ports['api']}",
        "EDGE_URLS": f"http://127.0.0.1:{ports['edge']}",
        "EDGE_PURGE_TOKEN_FILE": purging,
        "ALLOW_LOCAL_REQUESTS": "true",
        "DISK_RESERVE": str(disks.RESERVE),
        # The load is one user's, from one address, and nobody's patience is tried.
        **dict.fromkeys(("PIPELINE_RATE_LIMIT", "JOBS_RATE_LIMIT", "RAW_RATE_LIMIT", "VARIABLES_LIMIT"), "0"),
        "RUNNER_POLL_TIMEOUT": "2",
        "HAND_OUT_TIMEOUT": str(HAND_OUT_SECONDS),
    }
    edge = {
        "ORIGIN": f"http://127.0.0.1:{ports['api']}",
        "STORAGE_TOKEN_FILE": data.file_with_secret("edge-storage-token"),
        "PURGE_TOKEN_FILE": purging,
        "DISK_BYTES": str(disks.EDGE_BYTES),
        "MEMORY_OBJECT_BYTES": str(disks.EDGE_MEMORY_OBJECT_BYTES),
    }
    return _program(data, "api", "api_server", ports["api"], api), _program(
        data, "edge", "storage_edge", ports["edge"], edge
    )


def _program(
    data: DataDirectory, name: str, module: str, port: int, settings: Mapping[str, str]
) -> KeptProgram:
    given = {"DATA_DIR": str(data.part(name)), "PORT": str(port), "LOG_FORMAT": "json", **settings}
    ours = {name: value for name, value in os.environ.items() if not name.startswith("FORGELET_")}
    return KeptProgram(
        name,
        data.part("logs"),
        [sys.executable, "-P", "-m", module],
        environment={
            **ours,
            "PYTHONPATH": str(CHECKOUT),
            **{f"FORGELET_{name.upper()}_{setting}": value for setting, value in given.items()},
        },
        cwd=data.part(name),
    )


def _furnished(root: Api, edge_url: str, data: DataDirectory) -> str:
    """Makes the owner and joins the edge; her token."""
    root.put(
        "application/settings",
        {
            "static_objects_external_storage_url": edge_url,
            "static_objects_external_storage_auth_token": data.secret("edge-storage-token"),
        },
    )
    return new_user(root, OWNER)
