"""`forgelet migrate` says what it will do, and `--check` only that."""

from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from tests.support.database_roles import as_role

from .running import answer, mistake, of_server


def test_what_is_to_be_done_is_said_first_and_then_done_once(
    postgres_url: str, tmp_path: Path, new_database: Callable[[], str]
) -> None:
    with as_role(postgres_url) as owner:
        owner.execute("CREATE DATABASE still_empty")
    url = urlunsplit(urlsplit(postgres_url)._replace(path="/still_empty"))
    refused = mistake(of_server(url, tmp_path, "user", "block", "root"))
    assert refused.startswith("The database is not of this version's schema: run `forgelet migrate`")
    checked = of_server(url, tmp_path, "migrate", "--check", "--json")
    assert checked.exit_code == 1
    assert '"apply 0001_accounts' in checked.stdout
    done = of_server(url, tmp_path, "migrate")
    assert done.exit_code == 0
    assert done.stderr.splitlines()[0] == "make the tables of the queue ..."
    assert done.stdout.endswith(" steps are done.\n")
    assert answer(of_server(url, tmp_path, "migrate", "--check", "--json")) == {"to_do": []}
    assert of_server(url, tmp_path, "migrate").stdout == "The database is of this version already.\n"
