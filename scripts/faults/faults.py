"""The faults: each function in `FAULTS` breaks something for a while, and repairs it."""

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random

import attrs

from scripts.faults import surroundings
from scripts.faults.environment import Environment
from scripts.faults.surroundings import ALONE, FLEET, MISBEHAVIOUR, NOBODY, WITH_S3, Proxy, Shape


async def _hold(target: object, random: Random, least: float, most: float, **values: object) -> None:
    """Set the attributes to `values` for a random time between `least` and `most` seconds."""
    before = {name: getattr(target, name) for name in values}
    for name, value in values.items():
        setattr(target, name, value)
    await asyncio.sleep(random.uniform(least, most))
    for name, value in before.items():
        setattr(target, name, value)


async def kill_server(environment: Environment, random: Random) -> None:
    random.choice(environment.apis).kill()  # its git processes go on for a moment


async def kill_tree(environment: Environment, random: Random) -> None:
    random.choice(environment.apis).kill_tree()


async def kill_edge(environment: Environment, random: Random) -> None:
    random.choice(environment.edges).kill()


async def kill_postgres(environment: Environment, _: Random) -> None:
    environment.databases.postgres.kill_tree()


async def stop_postgres(environment: Environment, _: Random) -> None:
    """Shut PostgreSQL down in the fast mode, as a package upgrade does."""
    environment.databases.postgres.signal(signal.SIGINT)


async def crash_postgres(environment: Environment, _: Random) -> None:
    """Shut PostgreSQL down in the immediate mode: it notifies its clients, and the next start recovers."""
    environment.databases.postgres.signal(signal.SIGQUIT)


async def freeze_postgres(environment: Environment, random: Random) -> None:
    """Stop all processes of PostgreSQL for some seconds; connections stay open."""
    environment.databases.postgres.freeze()
    await asyncio.sleep(random.uniform(1, 6))
    environment.databases.postgres.thaw()


async def kill_pooler(environment: Environment, _: Random) -> None:
    assert environment.databases.pooler is not None
    environment.databases.pooler.kept.kill()


async def kill_replica(environment: Environment, _: Random) -> None:
    """Kill the standby and all of its processes with SIGKILL. Commits wait until it has caught up again."""
    standby = environment.databases.replication.standby
    assert standby is not None
    standby.kept.kill_tree()


async def promote_replica(environment: Environment, _: Random) -> None:
    """Kill the primary with SIGKILL for good; the standby takes its place, and gets a new standby."""
    await environment.databases.fail_over()


TOP_UP_SECONDS = 0.2


async def full_postgres(environment: Environment, random: Random) -> None:
    """Fill PostgreSQL's disk, which has the write-ahead log too: it panics and cannot start until there is room."""
    await _full(environment.databases.folder, random.uniform(1, 6))


async def full_data(environment: Environment, random: Random) -> None:
    """Fill the disk of repositories and objects."""
    await _full(environment.data.part("api"), random.uniform(1, 6))


async def full_edge(environment: Environment, random: Random) -> None:
    """Fill an edge's disk, which has its index and bodies. Sometimes the edge has to start in this state."""
    edge, seconds = random.choice(environment.edges), random.uniform(1, 6)
    if random.random() < 0.3:
        edge.kill()
    await _full(environment.data.part(edge.name), seconds)


async def _full(folder: Path, seconds: float) -> None:
    """Keep the disk full: fill again any space that is freed meanwhile."""
    until = time.monotonic() + seconds
    with surroundings.full(folder):
        while time.monotonic() < until:
            await asyncio.sleep(TOP_UP_SECONDS)
            await asyncio.to_thread(surroundings.fill, folder / surroundings.FILLER)


async def cut_connections(environment: Environment, random: Random) -> None:
    """Cut each database connection in the middle of its next statement, for a while new ones too; at last reset all."""
    await _hold(environment.databases.proxy, random, 0.05, 1.5, cutting=True)
    environment.databases.proxy.drop()


async def slow_database(environment: Environment, random: Random) -> None:
    await _hold(environment.databases.proxy, random, 1, 4, delay=random.uniform(0.02, 0.2))


async def bad_receivers(environment: Environment, random: Random) -> None:
    await _misbehave(environment, random, "receiver")


async def bad_targets(environment: Environment, random: Random) -> None:
    await _misbehave(environment, random, "target")


async def _misbehave(environment: Environment, random: Random, part: str) -> None:
    with environment.outside.misbehaving(part, random.choice(sorted(MISBEHAVIOUR))):
        await asyncio.sleep(random.uniform(1, 4))


async def bad_names(environment: Environment, random: Random) -> None:
    """Make the name server slow, silent or failing, or let it name an address on which nothing listens."""
    assert environment.names is not None
    slow: dict[str, object] = {"delay": random.uniform(0.5, 3)}
    behaviour = random.choice((slow, {"silent": True}, {"failing": True}, {"says": NOBODY}))
    await _hold(environment.names, random, 1, 6, **behaviour)


JUMP_SECONDS = 45


def _faketime() -> Path | None:
    return next(iter(sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))), None)


async def jump_clock(environment: Environment, random: Random) -> None:
    """Start a server again under a clock that jumps forward and back, and returns to the right time at the end."""
    server = random.choice(environment.apis)
    shift = environment.folder / "clock"
    _set(shift, 0)
    before = dict(server.environment)
    server.environment |= {
        "LD_PRELOAD": str(_faketime()),
        "FAKETIME_TIMESTAMP_FILE": str(shift),
        "FAKETIME_CACHE_DURATION": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }
    server.kill()
    try:
        await asyncio.sleep(0.5)
        await environment.ready()
        for seconds in random.sample((JUMP_SECONDS, -JUMP_SECONDS), 2):
            _set(shift, seconds)
            await asyncio.sleep(random.uniform(0.5, 4))
        _set(shift, 0)
        await asyncio.sleep(1.0)  # libfaketime caches the old time for this long
    finally:
        server.environment = before
        server.kill_tree()


def _set(file: Path, seconds: int) -> None:
    scratch = file.with_suffix(".new")
    scratch.write_text(f"{seconds:+d}\n")
    scratch.chmod(0o644)
    scratch.replace(file)


def _refusal(status: str, code: str, message: str) -> bytes:
    """Return an answer of S3."""
    body = f"<Error><Code>{code}</Code><Message>{message}</Message></Error>"
    head = f"HTTP/1.1 {status}\r\nContent-Type: application/xml\r\nConnection: close\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode()


_REFUSALS = (
    _refusal("503 Slow Down", "SlowDown", "Please reduce your request rate."),
    _refusal("403 Forbidden", "AccessDenied", "Access Denied"),
)


def _store(environment: Environment) -> Proxy:
    assert environment.object_store is not None
    return environment.object_store


async def slow_store(environment: Environment, random: Random) -> None:
    await _hold(_store(environment), random, 2, 5, delay=random.uniform(0.1, 1.0))


async def lost_store(environment: Environment, random: Random) -> None:
    """Reset the object store's connections, and close new ones at once."""
    _store(environment).drop()
    await _hold(_store(environment), random, 1, 4, refusing=True)


async def refusing_store(environment: Environment, random: Random) -> None:
    """Make the object store answer 503 Slow Down, or 403."""
    await _hold(_store(environment), random, 1, 4, instead=random.choice(_REFUSALS))
    _store(environment).drop()


@attrs.frozen
class Fault:
    inject: Callable[[Environment, Random], Awaitable[None]]
    #: The service on which the fault is made.
    shape: Shape = ALONE
    #: Whether the fault is possible in this environment, and otherwise what it needs.
    is_possible: Callable[[Environment], object] = lambda _: True
    needs: str = ""


def _full_disk(inject: Callable[[Environment, Random], Awaitable[None]]) -> Fault:
    needs = "needs root, to mount small disks"
    return Fault(inject, is_possible=lambda _: surroundings.can_mount(), needs=needs)


FAULTS: dict[str, Fault] = {
    "kill-server": Fault(kill_server),
    "kill-tree": Fault(kill_tree),
    "kill-edge": Fault(kill_edge),
    "kill-postgresql": Fault(kill_postgres),
    "stop-postgresql": Fault(stop_postgres),
    "crash-postgresql": Fault(crash_postgres),
    "freeze-postgresql": Fault(freeze_postgres),
    "full-postgresql": _full_disk(full_postgres),
    "full-data": _full_disk(full_data),
    "full-edge": _full_disk(full_edge),
    "cut-connections": Fault(cut_connections),
    "slow-database": Fault(slow_database),
    "bad-receivers": Fault(bad_receivers),
    "bad-mirror-targets": Fault(bad_targets),
    "bad-names": Fault(
        bad_names,
        is_possible=lambda environment: environment.names,
        needs="needs root and unshare, to give the server a name server of its own",
    ),
    "clock-jumps": Fault(
        jump_clock,
        is_possible=lambda _: _faketime(),
        needs="needs libfaketime (Debian: apt-get install libfaketime)",
    ),
    "slow-s3": Fault(slow_store, WITH_S3),
    "lost-s3": Fault(lost_store, WITH_S3),
    "refusing-s3": Fault(refusing_store, WITH_S3),
    "kill-pgbouncer": Fault(kill_pooler, FLEET),
    "kill-replica": Fault(kill_replica, FLEET),
    "promote-replica": Fault(promote_replica, FLEET),
}


def parts(name: str) -> list[str]:
    """Return the faults that a name stands for. Raise ValueError with one sentence if one of them is unknown."""
    names = name.split("+")
    if unknown := [part for part in names if part not in FAULTS]:
        raise ValueError(f"There is no fault {', '.join(unknown)}; there are {', '.join(FAULTS)}.")
    return names


def shape(name: str) -> Shape:
    """Return the smallest service on which all parts of the fault are possible. Raise ValueError as `parts` does."""
    return max((FAULTS[part].shape for part in parts(name)), key=[ALONE, WITH_S3, FLEET].index)


def hindrance(name: str, environment: Environment) -> str | None:
    """Return the reason why the fault is impossible in this environment, or None."""
    faults = (FAULTS[part] for part in parts(name))
    return next((fault.needs for fault in faults if not fault.is_possible(environment)), None)


async def inject(name: str, environment: Environment, random: Random) -> None:
    await asyncio.gather(*(FAULTS[part].inject(environment, random) for part in parts(name)))
