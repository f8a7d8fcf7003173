"""Fixtures that all tests share: a PostgreSQL of their own, a migrated database, and a running server."""

import contextlib
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import structlog

from api_server.state.migrate import migrate
from common import logs
from forgelet.local import embedded_postgres
from tests.support import costs, folders
from tests.support.answered import every_answer_fits, pytest_sessionfinish, pytest_testnodedown
from tests.support.costs import pytest_addoption, pytest_collection_modifyitems
from tests.support.forge import Forge, SharedForges, new_name, running_forge
from tests.support.logs import Logger
from tests.support.no_way_out import nothing_leaves
from tests.support.watchdog import Watchdog, slowness

__all__ = [
    "every_answer_fits",
    "nothing_leaves",
    "pytest_addoption",
    "pytest_collection_modifyitems",
    "pytest_sessionfinish",
    "pytest_testnodedown",
]

# Tracebacks as the server logs them: with the values of variables they would be slow, and would show secrets.
structlog.configure(
    processors=[
        logs._add_request_id,
        structlog.processors.add_log_level,
        structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback),
    ],
    logger_factory=Logger,
)


# On a busy machine, slow tests are not necessarily wrong.
_PATIENT = hypothesis.settings(
    deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow], print_blob=True
)
# The everyday profile tries other examples each day. The result of a whole run must not depend on chance, nor on data
# of an earlier run. A function that needs more or fewer examples uses a multiple of `settings().max_examples`.
hypothesis.settings.register_profile("everyday", _PATIENT, max_examples=25)
hypothesis.settings.register_profile("ci", _PATIENT, max_examples=100, derandomize=True, database=None)
hypothesis.settings.register_profile("sample", _PATIENT, max_examples=25, derandomize=True, database=None)

#: Seconds of the processor that one callback of the loop may take, on a machine of usual speed.
LONGEST_CALLBACK = 0.05


def pytest_configure(config: pytest.Config) -> None:
    """Let Ctrl-C end the processes that tests start, even if a shell has started the tests in the background with
    these signals ignored. Store temporary files in memory if there is room, unless TMPDIR is set."""
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGQUIT, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)
    costs.configure(config)
    judges = config.option.all or os.environ.get("CI")
    hypothesis.settings.load_profile("sample" if config.option.sample else "ci" if judges else "everyday")
    if not hasattr(config, "workerinput"):
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # the run cleans up, as after Ctrl-C
        if "TMPDIR" not in os.environ and folders.has_room():
            config.add_cleanup(folders.move_temporary_files())


@pytest.fixture
def tmp_path(tmp_path: Path) -> Iterator[Path]:
    """The folder of a test."""
    yield tmp_path
    _remove_clusters_of_root(tmp_path)


@pytest.fixture(scope="session", autouse=True)
def no_cluster_is_left(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    yield
    _remove_clusters_of_root(tmp_path_factory.getbasetemp())


def _remove_clusters_of_root(folder: Path) -> None:
    """Remove clusters to which links below the folder lead: PostgreSQL's account cannot enter pytest's folders."""
    for pattern in ("postgres", "*/postgres", "*/*/postgres"):
        for cluster in folder.glob(pattern):
            if cluster.is_symlink():
                shutil.rmtree(cluster.resolve(), ignore_errors=True)


@pytest.fixture(scope="session")
def watchdog() -> Iterator[Watchdog]:
    # Shorter callbacks are noted too, for the longest step of the run.
    watchdog = Watchdog(LONGEST_CALLBACK / 2)
    with watchdog.watching():
        yield watchdog


@pytest.fixture(autouse=True)
def nobody_holds_the_loop(watchdog: Watchdog, request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test if the service blocks the event loop in it."""
    watchdog.taken()  # callbacks before the test
    yield
    held = watchdog.taken()
    if held:
        request.node.user_properties.append(("step", max(one.seconds for one in held)))
    held = [one for one in held if one.seconds > LONGEST_CALLBACK]
    if held:
        # The machine is slower at some moments than at others.
        longest = LONGEST_CALLBACK * max(slowness() for _ in range(5))
        held = [one for one in held if one.seconds > longest]
    assert not held, "\n".join(map(str, held))


@pytest.fixture(scope="session")
def postgres() -> Iterator[embedded_postgres.Cluster]:
    """A PostgreSQL server of this test process. Autovacuum is off: with hundreds of databases it uses a whole core,
    and changes plans at random moments."""
    with embedded_postgres.temporary_cluster() as cluster:
        superuser = cluster.url("postgres", "postgres")
        _as(superuser, "ALTER SYSTEM SET autovacuum = off", "ALTER SYSTEM SET max_connections = 250")
        log = cluster.log
        cluster.stop()
        cluster.start(log)  # servers of modules run beside the shared ones: 100 connections are not enough
        yield cluster


@pytest.fixture(scope="session")
def postgres_url(postgres: embedded_postgres.Cluster) -> str:
    """The URL of an empty database, beside which other databases are created."""
    return postgres.url()


@pytest.fixture(scope="session")
def template(postgres: embedded_postgres.Cluster) -> str:
    """The name of a migrated database without data, from which others are copied; nothing connects to it."""
    name = "template_forge"
    _as(postgres.url(), f"CREATE DATABASE {name}")
    migrate(postgres.url(name))
    return name


@pytest.fixture(scope="session")
def passing_database(
    postgres: embedded_postgres.Cluster, template: str
) -> Callable[[], contextlib.AbstractContextManager[str]]:
    """A function that creates a migrated database without data for the duration of a block, and yields its URL.
    Without the removal, hundreds of databases would fill a disk in memory."""

    @contextlib.contextmanager
    def database() -> Iterator[str]:
        name = new_name("forge").replace("-", "_")
        # Copying files takes less of the processor than writing each page to the log.
        _as(postgres.url(), f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY FILE_COPY")
        try:
            yield postgres.url(name)
        finally:
            _as(postgres.url("postgres", "postgres"), f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")

    return database


@pytest.fixture(scope="module")
def new_database(
    passing_database: Callable[[], contextlib.AbstractContextManager[str]],
) -> Iterator[Callable[[], str]]:
    """A function that creates a migrated database without data, which exists until the module's end, and returns its
    URL."""
    with contextlib.ExitStack() as databases:
        yield lambda: databases.enter_context(passing_database())


@pytest.fixture(scope="module")
def database_of_module(
    passing_database: Callable[[], contextlib.AbstractContextManager[str]],
) -> Iterator[str]:
    """A migrated database whose data all tests of the module share."""
    with passing_database() as url:
        yield url


@pytest.fixture(scope="session")
async def shared_forges(
    passing_database: Callable[[], contextlib.AbstractContextManager[str]],
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[SharedForges]:
    forges = SharedForges(passing_database, lambda: tmp_path_factory.mktemp("shared"))
    yield forges
    await forges.stop()


@pytest.fixture(scope="module")
def shared_forge(shared_forges: SharedForges) -> Iterator[SharedForges]:
    """Running servers by settings, which tests share: `forge = await shared_forge(tier="free")`. A server runs at
    least until the module's end. A test that changes global state of a server has to restore it, or use its own server
    from `new_forge`."""
    yield shared_forges
    shared_forges.release()


@pytest.fixture(scope="session")
async def forge(
    passing_database: Callable[[], contextlib.AbstractContextManager[str]],
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[Forge]:
    """The server that most tests share."""
    with passing_database() as url:
        async with running_forge(url, tmp_path_factory.mktemp("forge")) as running:
            yield running


@pytest.fixture(scope="module")
async def two_forges(
    new_database: Callable[[], str], tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[tuple[Forge, Forge]]:
    """Two servers with one database and one data directory, as two processes would be."""
    url, data_dir = new_database(), tmp_path_factory.mktemp("two_forges")
    async with running_forge(url, data_dir) as one, running_forge(url, data_dir) as other:
        yield one, other


@pytest.fixture
def new_forge(
    passing_database: Callable[[], contextlib.AbstractContextManager[str]], tmp_path: Path
) -> Callable[..., contextlib.AbstractAsyncContextManager[Forge]]:
    """A function that runs a server for one test: `async with new_forge(tier="free") as forge`. It does background
    work only with `work=True`. Its database is dropped at the end, unless the test has given one."""

    @contextlib.asynccontextmanager
    async def running(**settings: Any) -> AsyncIterator[Forge]:
        settings = {"work": False} | settings
        given = settings.pop("database_url", None)
        with contextlib.nullcontext(given) if given else passing_database() as url:
            async with running_forge(url, settings.pop("data_dir", tmp_path), **settings) as forge:
                yield forge

    return running


def _as(url: str, *statements: str) -> None:
    """Run statements outside of transactions, as the role in the URL."""
    with embedded_postgres.autocommitting(url) as cursor:
        for statement in statements:
            cursor.execute(statement)


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder with a space in its name, which PostgreSQL's account may enter, unlike pytest's own folders."""
    path = Path(tempfile.mkdtemp(prefix="forge let ", dir="/tmp"))
    path.chmod(0o711)
    yield path
    shutil.rmtree(path)
