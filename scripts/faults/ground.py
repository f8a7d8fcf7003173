"""The service that is broken: API servers, edges and what they need on loopback, each started anew whenever it ends."""

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import attrs

from forgelet.local.api_client import Api, answers
from forgelet.local.data_directory import DataDirectory
from scripts.abuse.ground import new_user
from scripts.faults import disks, programs
from scripts.faults.client import TIMEOUT, Client
from scripts.faults.databases import Databases, running_databases
from scripts.faults.ledger import Ledger
from scripts.faults.names import NAME, NameServer, name_server
from scripts.faults.object_store import object_store
from scripts.faults.object_store import settings as object_store_settings
from scripts.faults.outside import Outside, outside
from scripts.faults.processes import Kept, KeptProgram
from scripts.faults.programs import Ports
from scripts.faults.proxy import Proxy, balanced
from scripts.faults.shapes import ALONE, Shape

READY_SECONDS = 60.0
OWNER = "alice"


@attrs.frozen
class Ground:
    """What faults break and the load asks. `owner` has all projects; `stranger` at the edge is nobody."""

    folder: Path
    data: DataDirectory
    ledger: Ledger
    #: All of them on one folder and one database; a balancer spreads connections over those that listen.
    apis: Sequence[KeptProgram]
    edges: Sequence[KeptProgram]
    databases: Databases
    outside: Outside
    #: The API servers' own, where they could be given one.
    names: NameServer | None
    #: Between the API servers and S3; None where objects are files.
    object_store: Proxy | None
    root: Client
    owner: Client
    nobody: Client
    #: At each edge.
    strangers: Sequence[Client]
    #: Of each process that says whether it is ready.
    urls: Sequence[str]

    def git_url(self, project: str) -> str:
        """Of a project's repository, for its owner."""
        host = urlsplit(self.owner.base).netloc
        return f"http://{OWNER}:{self.owner.token}@{host}/{OWNER}/{project}.git"

    @property
    def api(self) -> KeptProgram:
        """The first, or only, API server."""
        return self.apis[0]

    @property
    def edge(self) -> KeptProgram:
        return self.edges[0]

    @property
    def stranger(self) -> Client:
        return self.strangers[0]

    @property
    def kept(self) -> tuple[Kept, ...]:
        return *self.apis, *self.edges, *self.databases.kept

    async def serve(self) -> bool:
        """Whether all API servers say within a minute that they are ready."""
        return await _are_ready(self.urls[: len(self.apis)])

    async def ready(self) -> bool:
        """Whether the edges do, too."""
        return await _are_ready(self.urls)


async def _are_ready(processes: Sequence[str]) -> bool:
    urls = [f"{url}/-/readiness" for url in processes]
    deadline = asyncio.get_running_loop().time() + READY_SECONDS
    while not all([await asyncio.to_thread(answers, url) for url in urls]):
        if asyncio.get_running_loop().time() > deadline:
            return False
        await asyncio.sleep(0.2)
    return True


@contextlib.asynccontextmanager
async def prepared(tell: Callable[[str], None], shape: Shape = ALONE) -> AsyncIterator[Ground]:
    """Starts everything, with a user and her token; ends all of it."""
    async with contextlib.AsyncExitStack() as stack:
        data = stack.enter_context(_folders(shape))
        http = await stack.enter_async_context(
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=TIMEOUT)
        )
        http._retry_connection = False  # a PUT that was cut off may have been done: who asks twice is refused
        ledger = Ledger()
        names = await stack.enter_async_context(name_server())
        around = await stack.enter_async_context(outside(NAME if names else "127.0.0.1"))
        store = await stack.enter_async_context(object_store(data.part("logs"))) if shape.s3 else None
        tell(f"Starting {shape} ...")
        databases = await stack.enter_async_context(running_databases(data, shape))
        ports = Ports.free(shape)
        apis, edges = programs.of(data, shape, ports, databases)
        for api in apis:
            if names is not None:
                api.command = names.command(data.path.parent, api.command)
            if store is not None:
                api.environment |= object_store_settings(store)
        for program in (*apis, *edges):
            await stack.enter_async_context(program)
        await stack.enter_async_context(Proxy(ports.balancer, balanced(ports.apis)))
        base = f"{ports.url}/api/v4"
        root = Client(http, "api", base, ledger, data.secret("root-token", prefix="flpat-"))
        ground = Ground(
            folder=data.path.parent,
            data=data,
            ledger=ledger,
            apis=apis,
            edges=edges,
            databases=databases,
            outside=around,
            names=names,
            object_store=store,
            root=root,
            owner=root,
            nobody=attrs.evolve(root, token=""),
            strangers=[
                Client(http, edge.name, f"http://127.0.0.1:{port}", ledger, may_say={502, 504})
                for edge, port in zip(edges, ports.edges, strict=True)
            ],
            urls=[f"http://127.0.0.1:{port}" for port in (*ports.apis, *ports.edges)],
        )
        _started(apis, await ground.serve())
        token = await asyncio.to_thread(_furnished, Api(ports.url, root.token), ground.stranger.base, data)
        _started(edges, await ground.ready())  # which they are once the service knows their token
        yield attrs.evolve(ground, owner=attrs.evolve(root, token=token))


def _started(kept: Sequence[Kept], are_ready: bool) -> None:
    if not are_ready:
        said = "\n".join(one.newest_log().read_text()[-3000:] for one in kept)
        raise RuntimeError(f"The service did not start: {said}")


@contextlib.contextmanager
def _folders(shape: Shape) -> Iterator[DataDirectory]:
    """On small disks of their own where we are root."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fgl-faults-", dir="/tmp")))
        folder.chmod(0o711)  # PostgreSQL may have to run as another account
        data = DataDirectory(folder / "data")
        stack.enter_context(data.opened())
        stack.enter_context(disks.mounted(data.part("api"), disks.API_SIZE))
        for name in shape.edge_names:
            stack.enter_context(disks.mounted(data.part(name), disks.EDGE_SIZE))
        yield data


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
