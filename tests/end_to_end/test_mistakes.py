"""Settings that name what cannot be used: files, folders, programs, stores, addresses, databases."""

import contextlib
import os
import socket
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import pytest

from common.config_errors import own_command
from forgelet.local.embedded_postgres import Cluster
from tests.support.database_roles import as_role, with_another_role
from tests.support.mistakes import Mistaken, file, furnish, variable
from tests.support.ports import free_port
from tests.support.preloaded import Programs, preloaded

_URL = "FORGELET_API_DATABASE_URL"
_GIT = "git 2.36 or newer is needed"
_S3 = "has no credentials for S3: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or run where the machine has a role"
_NO_PEM = "TLS cannot be used: there is no PEM with a certificate and its unencrypted key in"

_SECRETS = [
    Mistaken(
        "api",
        "--root-token-file none",
        "--root-token-file cannot be read: No such file or directory: {place}/none",
    ),
    Mistaken(
        "api", "--root-token-file empty", "--root-token-file cannot be read: Is a directory: {place}/empty"
    ),
    Mistaken("api", "--root-token-file bytes", "--root-token-file is not a text: {place}/bytes"),
    Mistaken("api", "--root-token-file blank", "--root-token-file is empty: {place}/blank"),
    Mistaken(
        "api",
        "--root-token-file short",
        "What --root-token-file names has to be 8 to 255 visible ASCII characters"
        " without spaces: {place}/short",
    ),
    variable(
        "edge",
        "FORGELET_EDGE_PURGE_TOKEN_FILE",
        "file",
        "What FORGELET_EDGE_PURGE_TOKEN_FILE names has to be visible ASCII characters"
        " without spaces: {place}/file",
    ),
]

_PLACES = [
    Mistaken(
        "edge api", "--port {free} --data-dir file",
        "The data directory cannot be written: File exists: {place}/file",
    ),
    Mistaken(
        "edge api", "--port {free} --data-dir file/data",
        "The data directory cannot be written: Not a directory: {place}/file/data",
    ),
    Mistaken(
        "edge api", "--port {free} --data-dir empty",
        "The data directory cannot be written: Permission denied: {place}/empty", unprivileged=True,
    ),
    Mistaken(
        "api", "--ci-templates-dir gone",
        "The folder of CI templates cannot be read: No such file or directory: {place}/gone",
    ),
    Mistaken(
        "api", "--port {free} --object-store-url file://{place}/file",
        "The object store cannot be written: File exists: {place}/file",
    ),
    Mistaken(
        "edge", "--port {free} --shared-store-url file://{place}/file",
        "The shared store cannot be written: File exists: {place}/file",
    ),
    Mistaken(
        "api", "--object-store-url gs://bucket",
        "--object-store-url has to be a URL such as file:///folder or s3://bucket",
    ),
    Mistaken(
        "edge", "--shared-store-url gs://bucket",
        "--shared-store-url has to be a URL such as s3://bucket or file:///folder",
    ),
    variable(
        "api", "AWS_ACCESS_KEY_ID", "only-this", f"The object store {_S3}",
        flags="--port {free} --object-store-url s3://bucket",
    ),
    variable(
        "edge", "AWS_ACCESS_KEY_ID", "only-this", f"The shared store {_S3}",
        flags="--port {free} --shared-store-url s3://bucket",
    ),
    variable(
        "api", "AWS_ENDPOINT_URL", "http://127.0.0.1:1", f"The object store {_S3}",
        flags="--port {free} --object-store-url s3://bucket",
    ),
    variable(
        "api", "PATH", "{place}/empty",
        f"{_GIT}, and none can be run (No such file or directory): install it on PATH",
    ),
    variable("api", "PATH", "{place}/old", f"{_GIT}, the one on PATH is 2.35: upgrade it"),
    variable(
        "api", "PATH", "{place}/odd", f"{_GIT}, and the git on PATH does not say which it is: install it on PATH",
    ),
    Mistaken("edge", "--tls-cert none", "TLS cannot be used: No such file or directory: {place}/none"),
    Mistaken(
        "edge", "--tls-cert one.pem --tls-key none", "TLS cannot be used: No such file or directory: {place}/none",
    ),
    Mistaken(
        "edge", "--tls-cert one.pem --tls-key other.key",
        "TLS cannot be used: its key is not that of {place}/one.pem",
    ),
    Mistaken("edge", "--tls-cert one.pem", f"{_NO_PEM} {{place}}/one.pem"),
    Mistaken("edge", "--tls-cert file --tls-key one.key", f"{_NO_PEM} {{place}}/file"),
    Mistaken("edge", "--port {port}", "Cannot listen on 127.0.0.1:{port}: Address already in use"),
    Mistaken(
        "edge", "--port 0 --operations-port {port}", "Cannot listen on 127.0.0.1:{port}: Address already in use",
    ),
    Mistaken("edge", "--host nowhere.invalid", "Cannot listen on nowhere.invalid:8081: Name or service not known"),
    Mistaken("edge", "--host 192.0.2.1", "Cannot listen on 192.0.2.1:8081: Cannot assign requested address"),
]  # fmt: skip

_POSTGRESQL = "PostgreSQL cannot be used, check the setting database_url"
_FOREIGN = "The database has tables of another application ({}): give this service a database of its own"
_DATABASES = [
    Mistaken("api", "--port {port}", "Cannot listen on 127.0.0.1:{port}: Address already in use"),
    Mistaken("api", "--operations-port {port}", "Cannot listen on 127.0.0.1:{port}: Address already in use"),
    Mistaken(
        "api", "--host nowhere.invalid", "Cannot listen on nowhere.invalid:{free}: Name or service not known"
    ),
    Mistaken(
        "edge api", "--log-file file/log", "The log cannot be written: Not a directory: {place}/file/log"
    ),
    variable(
        "api commands",
        _URL,
        "postgresql://x:hunter2@127.0.0.1:1/x",
        f'{_POSTGRESQL}: connection to server at "127.0.0.1", port 1 failed: Connection refused',
    ),
    variable(
        "api commands",
        _URL,
        "postgresql://x/y?hunter2=1",
        f'{_POSTGRESQL}: invalid dsn: invalid URI query parameter: "hunter2"',
    ),
    variable("api commands", _URL, "{foreign}", _FOREIGN.format("users")),
    variable("api commands", _URL, "{yoyo}", _FOREIGN.format("_yoyo_migration")),
    variable(
        "api commands",
        _URL,
        "{powerless}",
        "The role of the setting database_url lacks rights (permission denied for table _yoyo_migration): run"
        " `{command} migrate --grant-to ROLE` as the role that owns the tables",
    ),
    Mistaken(
        "api",
        "--data-dir corrupt --database-url {database}",
        "{place}/corrupt/secret_key is not a secret key, which is 64 hexadecimal digits:"
        " restore it from a backup",
    ),
    Mistaken(
        "api",
        "--data-dir odd-key --database-url {database}",
        "The secret key {place}/odd-key/secret_key cannot be read: Is a directory",
    ),
]

PLACES = [*_SECRETS, *_PLACES, *_DATABASES]


_PORT_OF_API = "has to be a whole number from 1 to 65535"
_PORT = "has to be a whole number from 0 to 65535"
_TIMEOUT = "has to be a number from 0.1 to 86400"
_WEB = "has to be a URL such as http://host or https://host"
_ORIGIN = f"{_WEB} without a path"
_MISSING = (
    "is missing: set FORGELET_API_{}, or {} in section [api_server] of the file that FORGELET_SETTINGS names"
)
_DATA = "FORGELET_API_DATA_DIR"

_FLAGS = [
    Mistaken("edge", "--prot 1", "No such option '--prot'. (Did you mean one of: '--host', '--port'?)"),
    Mistaken("edge", "--port", "Option '--port' requires an argument"),
    Mistaken("edge", "surplus", "Got unexpected extra argument (surplus)"),
    Mistaken("edge", "--port 99999", f"--port {_PORT}"),
    Mistaken("edge", "--port -4", f"--port {_PORT}"),
    Mistaken("edge", "--port 8_080", f"--port {_PORT}"),
    Mistaken("edge", "--port http", f"--port {_PORT}"),
    Mistaken("edge", f"--port {'9' * 5000}", f"--port {_PORT}"),
    Mistaken("api", "--port 99999", f"--port {_PORT_OF_API}"),
    Mistaken("api", "--port 0", f"--port {_PORT_OF_API}"),
    Mistaken("api", "--operations-port 70000", f"--operations-port {_PORT}"),
    Mistaken("api", "--port 8080 --operations-port 8080", "--operations-port has to differ from --port"),
    Mistaken("edge", "--host=", "--host has to be an address or the name of a host"),
    Mistaken("api", "--database-pool 0", "--database-pool has to be a whole number from 1 to 1000000000"),
    Mistaken(
        "api",
        "--git-memory-limit 1",
        "--git-memory-limit has to be a whole number from 67108864 to 1125899906842624",
    ),
    Mistaken(
        "api", "--jobs-rate-limit -1", "--jobs-rate-limit has to be a whole number from 0 to 1000000000"
    ),
    Mistaken("edge", "--send-timeout 0", f"--send-timeout {_TIMEOUT}"),
    Mistaken("api", "--header-timeout nan", f"--header-timeout {_TIMEOUT}"),
    Mistaken("edge", "--origin-timeout inf", f"--origin-timeout {_TIMEOUT}"),
    Mistaken(
        "edge", "--disk-bytes -1", "--disk-bytes has to be a whole number from 1048576 to 1125899906842624"
    ),
    Mistaken(
        "edge", "--disk-bytes 10G", "--disk-bytes has to be a whole number from 1048576 to 1125899906842624"
    ),
    Mistaken("edge", "--origin http://h/path", f"--origin {_ORIGIN}"),
    Mistaken("edge", "--origin http://user:hunter2@h", f"--origin {_ORIGIN}"),
    Mistaken("edge", "--origin h:8080", f"--origin {_ORIGIN}"),
    Mistaken("edge", "--log-level LOUD", "--log-level has to be DEBUG, INFO, WARNING, ERROR or CRITICAL"),
    Mistaken("api", "--tier gold", "--tier has to be free, premium or ultimate"),
    Mistaken(
        "api",
        "--database-url localhost",
        "--database-url has to be a URL such as postgresql://host or postgres://host",
    ),
    Mistaken("api", "--external-url http://h/?a=b", f"--external-url {_WEB}"),
    Mistaken("api", "--edge-urls h:8081", f"--edge-urls {_WEB}"),
    Mistaken(
        "api", "--smtp-url mail.example.org", "--smtp-url has to be a URL such as smtp://host or smtps://host"
    ),
    Mistaken("api", "--mail-from nobody", "--mail-from has to be an address such as forgelet@example.org"),
    Mistaken(
        "edge",
        "--trusted-proxies proxy",
        "--trusted-proxies has to be an address or a network such as 10.0.0.0/8",
    ),
    Mistaken(
        "api", "--root-token short", "--root-token has to be 8 to 255 visible ASCII characters without spaces"
    ),
    Mistaken("api", "--data-dir=", "--data-dir has to be a path"),
    Mistaken("edge", "--tls-key one.key", "--tls-key is of no use without --tls-cert"),
]

_VARIABLES = [
    variable(
        "api commands", _URL, None, f"The setting database_url {_MISSING.format('DATABASE_URL', 'database_url')}",
    ),
    variable("api commands", _DATA, None, f"The setting data_dir {_MISSING.format('DATA_DIR', 'data_dir')}"),
    variable("api commands", _DATA, "", f"{_DATA} has to be a path"),
    variable(
        "api commands", _URL, "hunter2", f"{_URL} has to be a URL such as postgresql://host or postgres://host",
    ),
    variable("api commands", "FORGELET_API_PORT", "hunter2", f"FORGELET_API_PORT {_PORT_OF_API}"),
    variable("api commands", "FORGELET_API_PORT", "", f"FORGELET_API_PORT {_PORT_OF_API}"),
    variable("api commands", "FORGELET_API_WORK", "maybe", "FORGELET_API_WORK has to be true or false"),
    variable("api commands", "FORGELET_API_TIER", "gold", "FORGELET_API_TIER has to be free, premium or ultimate"),
    variable("api commands", "FORGELET_API_EDGE_URLS", "http://a,b", f"FORGELET_API_EDGE_URLS {_WEB}"),
    variable("edge", "FORGELET_EDGE_PORT", "99999", f"FORGELET_EDGE_PORT {_PORT}"),
    variable(
        "edge", "FORGELET_EDGE_PURGE_TOKEN", "a b",
        "FORGELET_EDGE_PURGE_TOKEN has to be visible ASCII characters without spaces",
    ),
    variable("edge", "FORGELET_EDGE_PORT", "1", f"--port {_PORT}", flags="--port 70000"),
]  # fmt: skip

_FILES = [
    variable(
        "edge api commands",
        "FORGELET_SETTINGS",
        "none.toml",
        "FORGELET_SETTINGS cannot be read: No such file or directory: none.toml",
    ),
    variable(
        "edge api commands",
        "FORGELET_SETTINGS",
        "empty",
        "FORGELET_SETTINGS cannot be read: Is a directory: empty",
    ),
    variable("edge api commands", "FORGELET_SETTINGS", "bytes", "FORGELET_SETTINGS is not a text: bytes"),
    file(
        "edge api commands",
        "[edge\nport = 1",
        "FORGELET_SETTINGS is not TOML: Expected ']' at the end of a table declaration"
        " (at line 1, column 6): settings.toml",
    ),
    file(
        "edge api commands",
        "[egde]\nport = 1",
        "egde in settings.toml is no section of settings; these are [api_server] and [edge]",
    ),
    file(
        "edge api commands",
        "port = 1",
        "port in settings.toml is no section of settings; these are [api_server] and [edge]",
    ),
    file(
        "edge api commands",
        "edge = 1",
        "edge in settings.toml is no section of settings; these are [api_server] and [edge]",
    ),
    file(
        "edge",
        "[edge]\nprot = 1",
        "prot in section [edge] of settings.toml names no setting; did you mean port?",
    ),
    file(
        "api commands",
        "[api_server]\nwhatever = 1",
        "whatever in section [api_server] of settings.toml names no setting",
    ),
    file("edge", "[edge]\nport = 'hunter2'", f"port in section [edge] of settings.toml {_PORT}"),
    file("edge", "[edge]\nport = true", f"port in section [edge] of settings.toml {_PORT}"),
    file("edge", "[edge]\nport = 80.5", f"port in section [edge] of settings.toml {_PORT}"),
    file("edge", "[edge]\nport = 70000", f"port in section [edge] of settings.toml {_PORT}"),
    file("edge", "[edge]\nsend-timeout = 0", f"send-timeout in section [edge] of settings.toml {_TIMEOUT}"),
    file("edge", "[edge]\nsend_timeout = inf", f"send_timeout in section [edge] of settings.toml {_TIMEOUT}"),
    file(
        "edge",
        "[edge]\naccess_log = 'no'",
        "access_log in section [edge] of settings.toml has to be true or false",
    ),
    file(
        "edge",
        "[edge]\nhost = 7",
        "host in section [edge] of settings.toml has to be an address or the name of a host",
    ),
    file(
        "edge",
        "[edge]\ntrusted_proxies = [7]",
        "trusted_proxies in section [edge] of settings.toml has to be an address or a"
        " network such as 10.0.0.0/8",
    ),
    file(
        "api commands",
        "[api_server]\nedge_urls = ['http://a', 'b']",
        f"edge_urls in section [api_server] of settings.toml {_WEB}",
    ),
    file(
        "api commands",
        "[api_server]\nlog_format = 'xml'",
        "log_format in section [api_server] of settings.toml has to be auto, console or json",
    ),
]

VALUES = [*_FLAGS, *_VARIABLES, *_FILES]


MODULES = {"api": "api_server", "edge": "storage_edge", "commands": "forgelet"}


@pytest.fixture(scope="module")
def programs() -> Iterator[Programs]:
    with preloaded("api_server.__main__", "storage_edge.__main__", "forgelet.command_line") as programs:
        yield programs


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with what the mistakes need."""
    furnish(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def databases(postgres: Cluster, postgres_url: str, new_database: Callable[[], str]) -> dict[str, str]:
    """URLs of one that works, the same for a role without rights, and two of somebody else."""
    urls = {"database": new_database()}
    urls["powerless"] = with_another_role(postgres, urls["database"]).serving
    for name, table in (("foreign", "users"), ("yoyo", "_yoyo_migration")):
        with as_role(postgres_url) as owner:
            owner.execute(f"DROP DATABASE IF EXISTS mistaken_{name}")  # of a fixture that was set up before
            owner.execute(f"CREATE DATABASE mistaken_{name}")
        urls[name] = urlunsplit(urlsplit(postgres_url)._replace(path=f"/mistaken_{name}"))
        with as_role(urls[name]) as owner:
            owner.execute(f"CREATE TABLE {table} AS SELECT 'theirs' AS migration_id")
    return urls


@pytest.fixture
def busy_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def environment(program: str, changed: Mapping[str, str | None]) -> dict[str, str | None]:
    """What makes the program work, until it is changed."""
    given: dict[str, str | None] = {"PATH": os.environ["PATH"], "HOME": "{place}"}
    if program != "edge":
        given |= {
            "FORGELET_API_DATABASE_URL": "postgresql://forgelet:hunter2@127.0.0.1:1/none",
            "FORGELET_API_DATA_DIR": "{place}/data",
            "FORGELET_API_PORT": "{free}",
        }
    return {**given, **changed}


@pytest.mark.parametrize("mistaken", [*VALUES, *PLACES], ids=str)
def test_a_mistake_is_one_sentence(
    mistaken: Mistaken, programs: Programs, place: Path, busy_port: int, databases: dict[str, str]
) -> None:
    with contextlib.chdir(place):
        command = own_command()
    filling = {
        "command": command,
        "place": str(place),
        "port": str(busy_port),
        "free": str(free_port()),
        **databases,
    }

    def filled(text: str) -> str:
        for name, value in filling.items():
            text = text.replace(f"{{{name}}}", value)
        return text

    changed = dict(mistaken.environment)
    if mistaken.file is not None:
        (place / "settings.toml").write_text(mistaken.file)
        changed["FORGELET_SETTINGS"] = "settings.toml"
    for program in mistaken.program.split():
        flags = [filled(flag) for flag in mistaken.flags.split()]
        given = environment(program, changed)
        ended = programs.run(
            MODULES[program],
            ["migrate"] if program == "commands" else flags,
            {name: filled(value) for name, value in given.items() if value is not None},
            folder=place,
            unprivileged=mistaken.unprivileged,
        )
        assert (ended.status, ended.errors) == (2, f"Error: {filled(mistaken.sentence)}\n"), program
        assert ended.output == ""
