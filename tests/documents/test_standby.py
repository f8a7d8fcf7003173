"""A standby that the commands of docs/database.md create, unchanged."""

import contextlib
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

import attrs
import pytest

from forgelet.local import embedded_postgres
from forgelet.local.processes import Account
from tests.support import standbys
from tests.support.checkout import CHECKOUT
from tests.support.standbys import Standby

pytestmark = [
    pytest.mark.skipif(not standbys.program(), reason="pg_basebackup is not installed"),
]

DOCUMENT = (CHECKOUT / "docs" / "database.md").read_text(encoding="utf-8")
PRINTED_FOLDER, PRINTED_HOST = "/var/lib/postgresql/15/main", "10.0.0.5"
#: The place of sockets is given at the start of the server, which the test does itself.
START = f"pg_ctl -D {PRINTED_FOLDER} start"
WHO_STREAMS = """
    SELECT string_agg(concat_ws(' ', application_name, state, sync_state), ',' ORDER BY application_name, state)
    FROM pg_stat_replication
"""


def printed(language: str, holds: str) -> list[str]:
    """Return the commands of the only block with these words, with continued lines joined, without comments."""
    (block,) = [
        found
        for found in re.findall(rf"^```{language}\n(.*?)^```$", DOCUMENT, re.MULTILINE | re.DOTALL)
        if holds in found
    ]
    lines = block.replace("\\\n", " ").splitlines()
    return [text for line in lines if (text := re.sub(r"(^|\s)(#|--) .*$", "", line).strip())]


@attrs.frozen
class Keyboard:
    """The shell of an administrator on the machines of the primary and the standby."""

    primary: embedded_postgres.Cluster
    folder: Path

    @property
    def url(self) -> str:
        return self.primary.url("postgres", "postgres")

    @property
    def password(self) -> str:
        return unquote(urlsplit(self.url).password or "")

    def begin(self, command: str) -> "subprocess.Popen[str]":
        (sockets,) = parse_qs(urlsplit(self.url).query)["host"]
        text = command.replace(PRINTED_FOLDER, str(self.folder / "data")).replace(PRINTED_HOST, sockets)
        program = standbys.program()
        assert program is not None
        environment = {
            "PATH": f"{program.parent}:{os.environ['PATH']}",
            "PGHOST": sockets,
            "PGUSER": "postgres",
            "PGPASSWORD": self.password,
        }
        account = Account.of(self.folder.stat().st_uid)
        return subprocess.Popen(
            ["sh", "-euc", text],
            env=environment,
            cwd="/",
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            **account.popen_arguments(),
        )

    def type(self, command: str) -> str:
        with self.begin(command) as process:
            said, _ = process.communicate(timeout=standbys.SECONDS)
        assert process.returncode == 0, said
        return said

    def ask(self, statement: str) -> object:
        return standbys.run(self.url, statement)


@pytest.fixture
def keyboard() -> Iterator[Keyboard]:
    root = embedded_postgres.temporary_root()
    with (
        embedded_postgres.temporary_cluster() as primary,
        tempfile.TemporaryDirectory(prefix="forgelet-pg-", dir=root) as name,
    ):
        Path(name).chmod(0o711)
        yield Keyboard(primary, embedded_postgres.make_folder(Path(name) / "standby"))


def test_it_follows_under_its_name_and_the_copy_under_way_does_not_count_as_it(keyboard: Keyboard) -> None:
    role, copy, name, start, look = printed("text", "pg_basebackup")
    assert start == START
    keyboard.type(role)
    for statement in printed("sql", "synchronous_standby_names"):
        keyboard.ask(statement.rstrip(";"))

    seen = set()
    with keyboard.begin(copy.replace("--checkpoint", "--max-rate=8M --checkpoint")) as process:
        while process.poll() is None:
            seen.add(keyboard.ask(WHO_STREAMS))
        assert process.returncode == 0, process.communicate()[0]
    assert "pg_basebackup backup async,pg_basebackup streaming async" in seen
    assert not any("sync" in each.replace("async", "") for each in map(str, seen))

    keyboard.type(name)
    standby = Standby(keyboard.folder, keyboard.password, Account.of(keyboard.folder.stat().st_uid))
    with contextlib.ExitStack() as stack:
        stack.callback(standby.stop)
        standby.start()
        standbys.until(lambda: keyboard.ask(WHO_STREAMS) == "standby streaming sync", "a synchronous standby")
        assert re.search(
            r"^ standby +\| streaming \| [0-9A-F]+/[0-9A-F]+$", keyboard.type(look), re.MULTILINE
        )
