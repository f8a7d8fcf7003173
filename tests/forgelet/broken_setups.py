"""Set-ups that are broken in one way each: what is changed, and what `doctor` and the start say of it."""

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import attrs

from forgelet.local.embedded_postgres import Cluster
from tests.support.database_roles import as_role, with_another_role
from tests.support.mailbox import Mailbox
from tests.support.s3 import Bucket


@attrs.define
class Setup:
    """A service that works: the variables of both processes, and what they use. What is broken is changed here."""

    environment: dict[str, str]
    mailbox: Mailbox
    bucket: Bucket
    new_database: Callable[[], str]
    postgres: Cluster
    #: A folder of the test, with what `furnish` makes.
    place: Path
    unprivileged: bool = False

    def set(self, name: str, value: object) -> None:
        """Sets a variable of the API server, or with its whole name, any."""
        self.environment[name if name.isupper() else f"FORGELET_API_{name.upper()}"] = str(value)

    def own_database(self) -> str:
        """One that the test may spoil, with the key of the others."""
        url, theirs = self.new_database(), self.environment["FORGELET_API_DATABASE_URL"]
        with as_role(theirs) as sound, as_role(url) as owner:
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
        """A copy with the same key."""
        folder = self.place / "data"
        (folder / "objects").mkdir(parents=True)
        shutil.copy2(Path(self.environment["FORGELET_API_DATA_DIR"]) / "secret_key", folder)
        self.set("data_dir", folder)
        return folder


@attrs.frozen
class Broken:
    """`break_` changes a set-up; `says` is in the one line that is not well, `start` is what the API server says."""

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
        with as_role(url) as owner:
            owner.execute(statement)

    return run


def _foreign(setup: Setup) -> None:
    url = setup.own_database()
    with as_role(url) as owner:
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
        "is not the one that the database's secrets are sealed under",
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
