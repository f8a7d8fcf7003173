"""What PostgreSQL writes into its log when a statement fails is of no use to who reads it."""

import re
from collections.abc import Callable
from pathlib import Path

import psycopg2
import pytest

from api_server.state.migrate import migrate
from api_server.state.secrets import Vault
from forgelet.local.embedded_postgres import Cluster
from tests.support.database_roles import with_another_role
from tests.support.forge import Forge, new_name, running_forge

PASSWORD = "correct horse battery staple"


class Log:
    """What PostgreSQL has written since this was made, on behalf of one database."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._before = cluster.log.stat().st_size

    def text(self) -> str:
        return self._cluster.log.read_bytes()[self._before :].decode()


async def fail_with_secrets(forge: Forge) -> None:
    """Statements with a password's hash, seeds and digests in them, which the database refuses."""
    alice = await forge.user("alice")
    taken = {"username": alice.username.upper(), "name": "x", "email": f"{new_name('x')}@example.org"}
    answer = await forge.root.post("/users", taken | {"password": PASSWORD, "skip_confirmation": True})
    assert answer.status == 409, answer
    async with forge.database.transaction() as transaction:
        with pytest.raises(psycopg2.Error):
            await transaction.run(
                "UPDATE personal_access_tokens SET digest = %(digest)s, user_id = NULL", digest=b"\x01"
            )


async def test_statements_that_fail_are_not_written(postgres: Cluster, forge: Forge) -> None:
    log = Log(postgres)
    await fail_with_secrets(forge)
    assert 'violates unique constraint "users_username"' in log.text(), "the error itself is"
    for secret in ("INSERT INTO users", "keyed$", "UPDATE personal_access_tokens", PASSWORD):
        assert secret not in log.text(), secret


async def test_without_the_privilege_they_say_nothing_of_use_without_the_key(
    postgres: Cluster, new_database: Callable[[], str], tmp_path: Path
) -> None:
    """A role that may not keep statements out of the log: password hashes in it cannot be tried out."""
    roles = with_another_role(postgres, new_database())
    migrate(roles.owner, roles.name)
    log = Log(postgres)
    async with running_forge(roles.serving, tmp_path, work=False) as forge:
        await fail_with_secrets(forge)
        (hashed,) = set(re.findall(r"keyed\$[0-9a-f$]+", log.text()))
        vault = Vault(bytes.fromhex((tmp_path / "secret_key").read_text().strip()))
        assert vault.password_matches(PASSWORD, hashed)
        assert not Vault(bytes(32)).password_matches(PASSWORD, hashed), "another key"
        _, salt, digest = hashed.split("$")
        assert not vault.password_matches(PASSWORD, f"scrypt${salt}${digest}"), "without a key"
        assert PASSWORD not in log.text()


def test_passwords_that_were_stored_before_still_open() -> None:
    stored = "scrypt$" + "07" * 16 + "$67ae444ac1cd3a35071ac80db439b45ebeef6d3059eeb77e90f06fb0dc37baea"
    vault = Vault(bytes(range(32)))
    assert vault.password_matches(PASSWORD, stored)
    assert not vault.password_matches("another", stored)
    assert not vault.password_matches(PASSWORD, None)
