"""Set-ups with one defect each, and failing services: `doctor` reports this and nothing else, with the remedy."""

import asyncio
import contextlib
import json
import os
import shutil
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import attrs
import pytest

from api_server.state.errors import Unavailable
from common.loop_watch import LOOP_WATCH, LoopStall
from common.serving import serving
from forgelet.doctor import processes, surroundings
from forgelet.doctor.examination import LONGEST, examine
from forgelet.doctor.findings import DiagnosedInstance, Finding
from forgelet.local.embedded_postgres import Cluster, autocommitting
from storage_edge import app
from storage_edge.app import served
from storage_edge.settings import Settings as EdgeSettings
from tests.api_server.operations.scene import PURGE_TOKEN, SECRET, Scene, failing_scene
from tests.support.database_roles import with_another_role
from tests.support.disks import small_disk
from tests.support.forge import running_forge
from tests.support.mailbox import Mailbox, running_mailbox
from tests.support.mistakes import furnish
from tests.support.ports import free_port
from tests.support.preloaded import Ended, Programs, preloaded
from tests.support.s3 import Bucket, at, serving_bucket


@attrs.define
class Setup:
    """A working service: the variables of both processes, and everything that they use. Tests change it to break
    something."""

    environment: dict[str, str]
    mailbox: Mailbox
    bucket: Bucket
    new_database: Callable[[], str]
    postgres: Cluster
    #: A folder of the test, with the files of `furnish`.
    place: Path
    unprivileged: bool = False

    def set(self, name: str, value: object) -> None:
        """Set a variable of the API server, or any variable by its whole name."""
        self.environment[name if name.isupper() else f"FORGELET_API_{name.upper()}"] = str(value)

    def own_database(self) -> str:
        """Use a database that the test may break, with the key of the others; return its URL."""
        url, theirs = self.new_database(), self.environment["FORGELET_API_DATABASE_URL"]
        with autocommitting(theirs) as sound, autocommitting(url) as owner:
            sound.execute(
                "SELECT values::text, static_objects_external_storage_auth_token FROM application_settings"
            )
            owner.execute(
                "UPDATE application_settings SET values = %s, static_objects_external_storage_auth_token = %s",
                sound.fetchone(),
            )
        self.set("database_url", url)
        self.own_data_dir()
        return url

    def own_data_dir(self) -> Path:
        """Use a data directory with the same key; return it."""
        folder = self.place / "data"
        (folder / "objects").mkdir(parents=True)
        shutil.copy2(Path(self.environment["FORGELET_API_DATA_DIR"]) / "secret_key", folder)
        self.set("data_dir", folder)
        return folder


@attrs.frozen
class Broken:
    """A defect: `break_` changes a set-up; `says` is in the only line that is not well, `start` is the API server's
    message."""

    break_: Callable[[Setup], Any]
    says: str
    remedy: str
    start: str | None = None
    state: str = "failed"


def _listening(setup: Setup) -> Any:
    setup.set("port", urlsplit(setup.mailbox.url).port)


def _sql(statement: str) -> Callable[[Setup], None]:
    def run(setup: Setup) -> None:
        url = setup.own_database()
        with autocommitting(url) as owner:
            owner.execute(statement)

    return run


def _foreign(setup: Setup) -> None:
    url = setup.own_database()
    with autocommitting(url) as owner:
        owner.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public; CREATE TABLE theirs ()")


def _role_without_rights(setup: Setup) -> None:
    setup.set("database_url", with_another_role(setup.postgres, setup.own_database()).serving)


def _password(setup: Setup) -> None:
    parts = urlsplit(setup.environment["FORGELET_API_DATABASE_URL"])
    setup.set("database_url", parts._replace(netloc=f"{parts.username}:hunter2@").geturl())


def _no_key(setup: Setup) -> None:
    (setup.own_data_dir() / "secret_key").unlink()


def _other_key(setup: Setup) -> None:
    (setup.own_data_dir() / "secret_key").write_text("ab" * 32)


def _open_key(setup: Setup) -> None:
    (setup.own_data_dir() / "secret_key").chmod(0o644)


def _clock_behind(setup: Setup) -> None:
    later = time.time() + 7200
    os.utime(setup.own_data_dir() / "secret_key", (later, later))


def _bucket(failure: str) -> Callable[[Setup], None]:
    return lambda setup: setattr(setup.bucket, "failure", failure)


def _file(text: str) -> Callable[[Setup], None]:
    def write(setup: Setup) -> None:
        file = setup.place / "settings.toml"
        file.write_text(text)
        setup.set("FORGELET_SETTINGS", file)

    return write


def _set(name: str, value: str) -> Callable[[Setup], None]:
    return lambda setup: setup.set(name, value.replace("{place}", str(setup.place)))


BROKEN = {
    "no git": Broken(_set("PATH", "{place}/empty"), "none can be run", "install it on PATH"),
    "old git": Broken(_set("PATH", "{place}/old"), "the one on PATH is 2.35", "upgrade it"),
    "port taken": Broken(_listening, "what listens on 127.0.0.1:", "stop the other program"),
    "database down": Broken(
        _set("database_url", "postgresql://forgelet:hunter2@127.0.0.1:1/none"),
        "port 1 failed: Connection refused",
        "start PostgreSQL",
    ),
    "wrong password": Broken(_password, "password authentication failed", "mend database_url"),
    "database newer": Broken(
        _sql("INSERT INTO _yoyo_migration (migration_hash, migration_id) VALUES ('x', '9999_later')"),
        "The database is newer than this program, it has 9999_later",
        "run the version that it is of",
        "The database is newer than this program, it has 9999_later: run the version that it is of",
    ),
    "another application's database": Broken(
        _foreign, "tables of another application (theirs)", "give this service a database of its own"
    ),
    "role without rights": Broken(
        _role_without_rights, "lacks rights (permission denied", "run `forgelet migrate --grant-to ROLE`"
    ),
    "database read-only": Broken(
        _sql(
            "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET default_transaction_read_only = on',"
            " current_database()); END $$"
        ),
        "the database is read-only",
        "name the primary server",
    ),
    "key missing": Broken(
        _no_key, "secret_key is missing", "restore it from a backup", "is missing: restore it from a backup"
    ),
    "key of another database": Broken(
        _other_key,
        "is not the one that the database's secrets are encrypted with",
        "restore that one from a backup",
        "restore that one from a backup, or check database_url and data_dir",
    ),
    "key readable by others": Broken(_open_key, "other accounts of this machine may read", "chmod 600"),
    "clock behind": Broken(_clock_behind, "this machine's clock is behind", "NTP"),
    "wrong purge token": Broken(
        _set("edge_purge_token", "another"), "the purge token of the edge", "give both processes one token"
    ),
    "no purge token": Broken(
        _set("edge_purge_token", ""), "edge_purge_token is not", "give both processes one token"
    ),
    "wrong storage token": Broken(
        _set("FORGELET_EDGE_STORAGE_TOKEN", "another"),
        "storage_token is not the one that the service knows it by",
        "External storage",
    ),
    "edge unreachable": Broken(
        _set("edge_urls", "http://127.0.0.1:1"), "cannot be reached: Connect call failed", "edge_urls"
    ),
    "mail server gone": Broken(
        _set("smtp_url", "smtp://127.0.0.1:1"), "the mail server 127.0.0.1:1 does not take us", "smtp_url"
    ),
    "wrong S3 credentials": Broken(
        _bucket("AccessDenied"), "s3://bucket cannot be used", "AWS_ACCESS_KEY_ID"
    ),
    "no bucket": Broken(_bucket("NoSuchBucket"), "s3://bucket cannot be used", "make the bucket"),
    "store gone": Broken(
        _set("object_store_url", "file://{place}/gone"), "the object store is gone", "mount it"
    ),
    "settings file broken": Broken(_file("[api_server\n"), "is not TOML", "put that right"),
    "unknown key": Broken(
        _file("[api_server]\nprot = 1\n"), "names no setting; did you mean port?", "put that right"
    ),
    "unknown variable": Broken(
        _set("prot", "1"), "FORGELET_API_PROT names no setting", "rename or remove it", state="warning"
    ),
}


STORAGE_TOKEN, EDGE_PURGE_TOKEN = "storage-token-of-tests", "purge-token-of-tests"
#: The free space on the disk of this machine does not matter.
ROOM = "are free on the disk of"
SECRETS = (STORAGE_TOKEN, EDGE_PURGE_TOKEN, "correct horse", "hunter2", "made-up")


@pytest.fixture(scope="module")
def programs() -> Iterator[Programs]:
    with preloaded(
        "forgelet.command_line",
        "forgelet.doctor.examination",
        "forgelet.commands.outgoing",
        "api_server.__main__",
    ) as programs:
        yield programs


@pytest.fixture(scope="module")
async def sound(
    new_database: Callable[[], str], postgres: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Setup]:
    """A running service and an edge, with mail and a store in S3."""
    folder, port = tmp_path_factory.mktemp("sound"), free_port()
    edge_url, url = f"http://127.0.0.1:{port}", new_database()
    async with contextlib.AsyncExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        bucket, _ = await stack.enter_async_context(serving_bucket(patch))
        mailbox = await stack.enter_async_context(running_mailbox(folder))
        patch.setenv("SSL_CERT_FILE", str(folder / "mailbox.pem"))
        told: dict[str, Any] = {
            "edge_urls": [edge_url],
            "edge_purge_token": EDGE_PURGE_TOKEN,
            "smtp_url": mailbox.url,
            "object_store_url": "s3://bucket",
            "audit_head_minutes": 0,  # this task would fail if its minute comes while a test has broken the store
        }
        forge = await stack.enter_async_context(running_forge(url, folder / "service", **told))
        of_edge = {
            "origin": forge.base,
            "storage_token": STORAGE_TOKEN,
            "purge_token": EDGE_PURGE_TOKEN,
            "data_dir": folder / "edge",
            "port": port,
            "negative_seconds": 600,
        }
        chosen = EdgeSettings(**of_edge)  # type: ignore[arg-type]
        await stack.enter_async_context(serving(served(app.create_app(chosen), chosen)))
        await forge.root.put(
            "/application/settings",
            {
                "static_objects_external_storage_url": edge_url,
                "static_objects_external_storage_auth_token": STORAGE_TOKEN,
            },
        )
        settings = told | {
            "edge_urls": edge_url,
            "database_url": url,
            "data_dir": folder / "service",
            "port": urlsplit(forge.base).port,
        }
        passed = {name: os.environ[name] for name in os.environ if name.startswith(("AWS_", "SSL_", "PATH"))}
        environment = passed | {
            f"FORGELET_API_{name.upper()}": str(value) for name, value in settings.items()
        }
        environment |= {f"FORGELET_EDGE_{name.upper()}": str(value) for name, value in of_edge.items()}
        yield Setup(environment, mailbox, bucket, new_database, postgres, folder)


@pytest.fixture
def setup(sound: Setup, tmp_path: Path) -> Iterator[Setup]:
    furnish(tmp_path)
    yield attrs.evolve(sound, environment=dict(sound.environment), place=tmp_path)
    sound.bucket.failure = None


async def doctor(setup: Setup, programs: Programs, *arguments: str) -> Ended:
    """Run doctor in a process of its own, while this process serves what it checks."""
    return await asyncio.to_thread(
        programs.run,
        "forgelet",
        ["doctor", *arguments],
        {"HOME": str(setup.place), **setup.environment},
        folder=setup.place,
        unprivileged=setup.unprivileged,
    )


async def test_of_a_service_that_works_nothing_is_said(setup: Setup, programs: Programs) -> None:
    ended = await doctor(setup, programs)
    assert ended.errors == ""
    lines = [line for line in ended.output.splitlines() if ROOM not in line]
    assert [line for line in lines if not line.startswith("ok ")] == []
    assert len(ended.output.splitlines()) >= 15
    assert ended.status == 0
    assert not any(key.startswith("projects/0/") for key in setup.bucket.objects)


@pytest.mark.parametrize("name", BROKEN)
async def test_what_is_broken_is_one_line_with_its_remedy(
    name: str, setup: Setup, programs: Programs
) -> None:
    broken = BROKEN[name]
    broken.break_(setup)
    ended = await doctor(setup, programs, "--json", "--quiet")
    found = json.loads(ended.output)
    # Running processes may report the same about themselves.
    said = [
        one
        for one in found["findings"]
        if not (one["check"] == "work" and one["what"].startswith(("store ", "edge ")))
        and "says of its" not in one["what"]
        and ROOM not in one["what"]
    ]
    assert len(said) == 1, found["findings"]
    finding = said[0]
    assert broken.says in finding["what"]
    assert broken.remedy in finding["remedy"]
    assert finding["state"] == broken.state
    assert ended.status == int("failed" in [one["state"] for one in found["findings"]])
    assert not [secret for secret in SECRETS if secret in ended.output + ended.errors]
    if broken.start is not None:
        ended = await asyncio.to_thread(
            programs.run,
            "api_server",
            ["--port", str(free_port())],
            setup.environment,
            folder=setup.place,
        )
        assert ended.status == 2
        assert ended.errors.startswith("Error: ")
        assert ended.errors.endswith(f"{broken.start}\n")
        assert ended.errors.count("\n") == 1


async def test_a_folder_that_is_no_forgelets_is_a_mistake(setup: Setup, programs: Programs) -> None:
    ended = await doctor(setup, programs, "--data-dir", str(setup.place / "empty"))
    assert (ended.status, ended.output) == (2, "")
    assert ended.errors.endswith("is not the data directory of a forgelet: name another with --data-dir\n")


async def test_a_full_disk_is_seen(setup: Setup, programs: Programs) -> None:
    with small_disk(setup.place / "disk", 2) as disk:
        disk.fill()
        setup.set("data_dir", disk.path)
        setup.set("FORGELET_EDGE_DATA_DIR", disk.path)
        ended = await doctor(setup, programs, "--quiet")
    full = (
        f"the data directory cannot be written: No space left on device: {disk.path} — make room on its disk"
    )
    assert full in ended.output
    assert full.replace("the data", "the edge's") in ended.output
    assert ended.status == 1


async def test_a_folder_that_this_account_may_not_write_is_seen(setup: Setup, programs: Programs) -> None:
    setup.set("data_dir", setup.place / "empty")
    setup.unprivileged = True
    ended = await doctor(setup, programs, "--quiet")
    lines = [line for line in ended.output.splitlines() if "data directory" in line]
    assert "Permission denied" in lines[0]
    assert "enter and write to" in lines[0]
    assert ended.status == 1


async def test_an_edge_with_an_account_and_tokens_of_its_own_is_asked_itself(
    setup: Setup, programs: Programs
) -> None:
    """This is how systemd runs it: only the edge can enter its directory and read its tokens."""
    directory = setup.place / "edge"
    directory.mkdir(mode=0o700)
    if os.geteuid() == 0:
        os.chown(directory, 12345, 12345)
    setup.set("FORGELET_EDGE_DATA_DIR", directory)
    del setup.environment["FORGELET_EDGE_STORAGE_TOKEN"]
    setup.unprivileged = True
    ended = await doctor(setup, programs)
    lines = [line for line in ended.output.splitlines() if "edge" in line and ROOM not in line]
    assert [line for line in lines if not line.startswith("ok ")] == []
    assert any("the service accepts the storage token of the edge" in line for line in lines)


async def test_what_does_not_run_is_started_as_it_was(setup: Setup, programs: Programs) -> None:
    setup.set("port", free_port())
    ended = await doctor(setup, programs, "--quiet")
    (line,) = [line for line in ended.output.splitlines() if "does not run" in line]
    assert line.endswith(" api`")
    examined = await examine(setup.environment, is_local=True)
    remedies = [one.remedy for one in examined.findings["API server"]]
    assert [remedy.endswith(" up`") for remedy in remedies] == [True]


async def test_what_swallows_everything_is_not_waited_for_without_end(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as swallowing:  # accepts connections, and sends nothing
        place = f"127.0.0.1:{swallowing.getsockname()[1]}"
        setup.set("database_url", f"postgresql://forgelet:hunter2@{place}/none")
        setup.set("smtp_url", f"smtp://{place}")
        setup.set("edge_urls", f"http://{place}")
        setup.set("FORGELET_EDGE_SHARED_STORE_URL", "s3://bucket")
        at(monkeypatch, f"http://{place}")
        begun = time.monotonic()
        examined = await examine(setup.environment, longest=0.3)
    assert time.monotonic() - begun < LONGEST
    assert examined.hangs
    for check in ("database", "edges", "mail", "object store", "shared store"):
        assert [one.what for one in examined.findings[check]] == [f"{check}: no answer within 0.3 s"]


async def test_edges_are_asked_and_purged_by_commands(setup: Setup, programs: Programs) -> None:
    async def edge(*arguments: str) -> Any:
        given = {"HOME": str(setup.place), **setup.environment}
        ended = await asyncio.to_thread(
            programs.run, "forgelet", ["edge", *arguments, "--json"], given, folder=setup.place
        )
        assert (ended.status, ended.errors) == (0, "")
        assert not [secret for secret in SECRETS if secret in ended.output]
        return json.loads(ended.output)

    (status,) = await edge("status")
    assert (status["origin"], status["storage_token"], status["problem"]) == ("reachable", "right", None)
    path = "/group/app/-/raw/main/README.md"
    async with aiohttp.ClientSession() as session:
        for _ in range(2):  # missing files are cached too, for a moment
            async with session.get(setup.environment["FORGELET_API_EDGE_URLS"] + path) as answer:
                assert answer.status == 404
    listed = await edge("list", "--prefix", "/group/app/")
    assert [(one["url"].endswith(path), one["bytes"] > 0) for one in listed] == [(True, True)]
    assert await edge("list", "--prefix", "/other/") == []
    (purged,) = await edge("purge", "--prefix", "/group/")
    assert purged["problem"] is None
    assert purged["purged"] >= 1
    assert await edge("list", "--prefix", "/group/app/") == []


def test_what_a_store_answers_is_told_by_its_words_and_not_by_digits_of_an_address() -> None:
    problem = Unavailable("the object store")
    problem.__cause__ = OSError("PUT http://127.0.0.1:14030/bucket/projects/0/doctor-4401: NoSuchBucket")
    assert "make the bucket" in surroundings._unusable("The object store", "s3://bucket", problem).remedy


def environment(scene: Scene) -> dict[str, str]:
    """The variables of the scene's server."""
    settings, nowhere = scene.forge.settings, f"127.0.0.1:{scene.nobody}"
    given = {
        "database_url": settings.database_url,
        "data_dir": settings.data_dir,
        "port": urlsplit(scene.forge.base).port,
        "object_store_url": f"file://{scene.store}",
        "smtp_url": f"smtp://forge:{SECRET}@{nowhere}",
        "edge_urls": f"http://{nowhere}",
        "edge_purge_token": PURGE_TOKEN,
    }
    return {f"FORGELET_API_{name.upper()}": str(value) for name, value in given.items()}


async def test_what_fails_is_said_with_its_reason_within_seconds(
    new_forge: Callable[..., Any], tmp_path: Path
) -> None:
    async with failing_scene(new_forge, tmp_path) as scene:
        await scene.break_all()
        await scene.queue_unknown(1)
        expected = {
            "mirror ": "Failed to connect",
            "delivery ": "Connection refused",
            "mail ": "SMTPConnectError",
            "edge ": "does not answer",
            "store ": "its folder is gone",
            "runner ": "no runner that may run them",
            "task ": "TaskNotFound",
        }
        findings: list[Finding] = []

        def are_seen() -> bool:
            said = [one.what for one in findings]
            return all(
                any(line.startswith(kind) and reason in line for line in said)
                for kind, reason in expected.items()
            )

        async with asyncio.timeout(30):
            while not are_seen():
                examined = await examine(environment(scene))
                findings = [one for found in examined.findings.values() for one in found]
        failed = [one for one in findings if one.state == "failed"]
        assert all(one.remedy for one in failed)
        text = "".join(one.text for one in findings)
        assert SECRET not in text
        assert PURGE_TOKEN not in text
        by_check = {check: [one.state for one in found] for check, found in examined.findings.items()}
        for check in ("edges", "mail", "object store"):  # it checks these by itself too
            assert by_check[check] == ["failed"], check


async def test_what_no_other_line_is_about_is_named_with_its_remedy(new_forge: Callable[..., Any]) -> None:
    async with new_forge() as forge:  # does no background work
        watch = forge.server.app[LOOP_WATCH]
        for seconds in (0.2, 2.8, 0.4):
            watch._record(LoopStall(time.monotonic(), seconds, seconds, route="GET /slow", project="7"))
        settings = attrs.evolve(forge.settings, port=urlsplit(forge.base).port)
        findings = await processes.api_server(DiagnosedInstance({}, settings, None, forge.session))
        watch._longest.clear()
    assert findings[0].state == "ok"
    assert [(one.state, one.what, one.remedy) for one in findings[1:]] == [
        (
            "warning",
            "the API server says of its queue: No process does background work",
            "start `forgelet worker`, or turn the setting work on",
        ),
        (
            "warning",
            "the API server says of its event loop: 0 minutes ago GET /slow of 7 held the event loop for 2.8 s",
            "see the other lines, or docs/troubleshooting.md",
        ),
    ]
