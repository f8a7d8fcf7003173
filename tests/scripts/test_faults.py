"""The faults of `scripts/faults/run`, in short, and its ledger."""

import asyncio
import contextlib
import json
import random
import socket
import struct
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from scripts.faults import scenario
from scripts.faults.client import Ledger, Outcome
from scripts.faults.environment import running_environment
from scripts.faults.faults import FAULTS, hindrance, parts
from scripts.faults.faults import shape as shape_for
from scripts.faults.scenario import InjectedFault, Load, Report, Sample, not_flat
from scripts.faults.surroundings import ALONE, FLEET, WITH_S3, NameServer, Proxy, Shape, balanced
from tests.support.ports import free_port

MIB = 2**20


class Short(random.Random):
    """Random numbers that keep each fault as short as possible."""

    def uniform(self, a: float, _b: float) -> float:
        return a


def a_ledger(outcome: Outcome, present: int) -> Ledger:
    """Return a ledger with one operation during the first fault, which is found this many times afterwards."""
    ledger = Ledger(fault=1)
    ledger.record("branch", "b-1", outcome)
    ledger.present["branch"] = Counter({"b-1": present})
    return ledger


@pytest.mark.parametrize(
    ("outcome", "present", "lost", "doubled"),
    [
        ("acknowledged", 0, 1, 0),
        ("acknowledged", 1, 0, 0),
        ("acknowledged", 2, 0, 1),
        ("unknown", 0, 0, 0),
        ("unknown", 1, 0, 0),
        ("unknown", 2, 0, 1),
        ("refused", 0, 0, 0),
    ],
)
def test_what_was_acknowledged_has_to_be_there_once(
    outcome: Outcome, present: int, lost: int, doubled: int
) -> None:
    report = Report(a_ledger(outcome, present), [InjectedFault(1, "kill-tree", {"branch": 0.5})])
    assert (len(report.ledger.lost()), len(report.ledger.doubled())) == (lost, doubled)
    assert report.failed == bool(lost or doubled)
    row = next(line for line in str(report).splitlines() if line.startswith("kill-tree"))
    known = [int(outcome == "acknowledged"), int(outcome == "unknown")]
    assert row.split()[1:9] == [*map(str, [1, *known, lost, doubled, 0, 0]), "0.5"]


def test_a_finding_fails_a_run_and_is_shown_with_the_log_of_its_request(tmp_path: Path) -> None:
    trace = 'File "/x/api_server/web/errors.py", line 115, in f\n    x\nValueError: no'
    said = [{"request_id": name, "event": "failed", "exception": trace} for name in ("load-1", "load-17")]
    (tmp_path / "api.0001.log").write_text("".join(f"{json.dumps(line)}\n" for line in said))
    ledger = Ledger(fault=1)
    assert not Report(ledger, [InjectedFault(1, "kill-edge")]).failed
    ledger.find("api: GET /x was answered 500 (load-17): no")
    report = Report(ledger, [InjectedFault(1, "kill-edge")])
    assert report.failed
    assert report.findings(tmp_path).splitlines() == [
        "[1 kill-edge] api: GET /x was answered 500 (load-17): no",
        "      event=failed exception='ValueError: no' at api_server/web/errors.py:115",
    ]


def test_a_success_counts_for_a_recovery_only_if_it_began_after_the_fault() -> None:
    ledger = Ledger()
    ledger.succeeded("read", 10.0)
    assert ledger.first_success("read", 10.5) is None
    assert ledger.first_success("read", 9.5) is not None
    assert ledger.first_success("write", 9.5) is None


@pytest.mark.parametrize(
    ("memory", "descriptors", "found"),
    [
        ([100, 101, 100, 101, 100, 101], [50, 60, 50, 60, 50, 60], []),
        ([100, 102, 104, 106, 108, 110], [50] * 6, ["api: memory grows by 4.0 MiB a minute"]),
        ([100] * 6, [50, 50, 70, 80, 100, 120], ["api: descriptors grew from 50 to 110"]),
    ],
)
def test_what_grows_while_nothing_is_broken_is_said(
    memory: list[int], descriptors: list[int], found: list[str]
) -> None:
    samples = [
        Sample(60.0 + 30 * number, size * MIB, count)
        for number, (size, count) in enumerate(zip(memory, descriptors, strict=True))
    ]
    assert not_flat("api", [Sample(30.0, 10 * MIB, 1), *samples]) == found


async def test_the_proxy_passes_on_and_cuts_in_the_middle() -> None:
    heard = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while said := await reader.read(100):
            heard.append(said)
            writer.write(said.upper())
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    behind = server.sockets[0].getsockname()[1]
    async with server, Proxy(free_port(), lambda: behind) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(b"select 1")
        assert await reader.read(100) == b"SELECT 1"
        proxy.cutting = True
        writer.write(b"select 2")
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read(100) == b""
        assert heard[0] == b"select 1"
        assert b"".join(heard[1:]) in (b"", b"sele")
        writer.close()


@pytest.mark.parametrize(
    ("server", "kind", "flags", "address"),
    [
        (NameServer("127.0.0.1"), 1, 0x8180, "127.0.0.1"),
        (NameServer("127.0.0.1", says="127.0.66.1"), 1, 0x8180, "127.0.66.1"),
        (NameServer("127.0.0.1"), 28, 0x8180, None),
        (NameServer("127.0.0.1", failing=True), 1, 0x8182, None),
    ],
)
def test_the_name_server_answers_as_it_is_told(
    server: NameServer, kind: int, flags: int, address: str | None
) -> None:
    question = b"\x07outside\x06faults\x04test\0" + struct.pack(">2H", kind, 1)
    answer = server.answer(struct.pack(">6H", 77, 0x0100, 1, 0, 0, 0) + question)
    assert struct.unpack(">6H", answer[:12]) == (77, flags, 1, int(address is not None), 0, 0)
    assert answer[12 : 12 + len(question)] == question
    assert answer[12 + len(question) :][12:] == (socket.inet_aton(address) if address else b"")


#: Each fault once, several at the same moment, because the suite has little time.
TOGETHER = (
    "kill-tree+kill-edge+bad-receivers+bad-mirror-targets+bad-names",
    "kill-postgresql+full-data+full-edge",
    "kill-server+stop-postgresql+cut-connections+slow-database",
    "full-postgresql+crash-postgresql+freeze-postgresql",
)
#: libfaketime can block a server for ever (`scripts/faults/faults.py`).
NOT_IN_SHORT = {"clock-jumps"}
PULSE = ("read", "commit", "edge read")


def test_each_fault_is_made() -> None:
    usual = {name for name, fault in FAULTS.items() if fault.shape == ALONE}
    assert sorted(part for name in TOGETHER for part in parts(name)) == sorted(usual - NOT_IN_SHORT)


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("kill-tree", ALONE),
        ("kill-tree+lost-s3", WITH_S3),
        ("slow-s3+kill-pgbouncer", FLEET),
        ("kill-pgbouncer+kill-edge", FLEET),
        ("promote-replica", FLEET),
    ],
)
def test_faults_are_made_on_the_smallest_service_that_has_what_they_break(name: str, wanted: Shape) -> None:
    assert shape_for(name) == wanted


def test_connections_go_to_those_that_listen_by_turns() -> None:
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        ports = [one.getsockname()[1], free_port(), other.getsockname()[1]]
        upstream = balanced(ports)
        assert [upstream() for _ in range(4)] == [ports[0], ports[2], ports[0], ports[2]]
    assert upstream() in ports


def test_a_fault_that_there_is_not_is_named() -> None:
    with pytest.raises(ValueError, match=r"^There is no fault kill-tee; there are kill-server, kill-tree, "):
        parts("kill-tee+kill-edge")


#: Faults of parts that a single service does not have.
TOGETHER_ON_A_FLEET = ("kill-pgbouncer+lost-s3+kill-replica", "promote-replica")


@pytest.mark.timeout(600)  # half a minute on an idle machine, and at most this long on a busy one
@pytest.mark.parametrize(
    ("shape", "together"),
    [
        pytest.param(ALONE, TOGETHER, id="alone"),
        pytest.param(
            FLEET,
            TOGETHER_ON_A_FLEET,
            id="fleet",
            marks=pytest.mark.skipif(FLEET.hindrance() is not None, reason=str(FLEET.hindrance())),
        ),
    ],
)
async def test_faults_are_made_and_nothing_is_lost(shape: Shape, together: Sequence[str]) -> None:
    """The speed of recovery is not checked, because it depends on the load of the machine."""
    async with running_environment(lambda _: None, shape) as environment:
        load = Load(environment, timeout=0)
        await load.prepare()
        possible = ([one for one in parts(name) if not hindrance(one, environment)] for name in together)
        names = ["+".join(each) for each in possible if each]
        report = Report(
            environment.ledger,
            await scenario.run_faults(environment, load, names, Short(1), lambda _: None, pulse=PULSE),
        )
        shown = f"{report}\n{report.findings(environment.data.part('logs'))}"
    assert [fault.name for fault in report.injected] == names
    assert not report.failed, shown
