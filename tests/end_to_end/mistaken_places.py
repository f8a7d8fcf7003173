"""Settings that name what cannot be used: files, folders, programs, stores, addresses, databases."""

from tests.support.mistakes import Mistaken, variable

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
        "edge api",
        "--port {free} --data-dir file",
        "The data directory cannot be written: File exists: {place}/file",
    ),
    Mistaken(
        "edge api",
        "--port {free} --data-dir file/data",
        "The data directory cannot be written: Not a directory: {place}/file/data",
    ),
    Mistaken(
        "edge api",
        "--port {free} --data-dir empty",
        "The data directory cannot be written: Permission denied: {place}/empty",
        unprivileged=True,
    ),
    Mistaken(
        "api",
        "--port {free} --object-store-url file://{place}/file",
        "The object store cannot be written: File exists: {place}/file",
    ),
    Mistaken(
        "edge",
        "--port {free} --shared-store-url file://{place}/file",
        "The shared store cannot be written: File exists: {place}/file",
    ),
    Mistaken(
        "api",
        "--object-store-url gs://bucket",
        "--object-store-url has to be a URL such as file:///folder or s3://bucket",
    ),
    Mistaken(
        "edge",
        "--shared-store-url gs://bucket",
        "--shared-store-url has to be a URL such as s3://bucket or file:///folder",
    ),
    variable(
        "api",
        "AWS_ACCESS_KEY_ID",
        "only-this",
        f"The object store {_S3}",
        flags="--port {free} --object-store-url s3://bucket",
    ),
    variable(
        "edge",
        "AWS_ACCESS_KEY_ID",
        "only-this",
        f"The shared store {_S3}",
        flags="--port {free} --shared-store-url s3://bucket",
    ),
    variable(
        "api",
        "AWS_ENDPOINT_URL",
        "http://127.0.0.1:1",
        f"The object store {_S3}",
        flags="--port {free} --object-store-url s3://bucket",
    ),
    variable(
        "api",
        "PATH",
        "{place}/empty",
        f"{_GIT}, and none can be run (No such file or directory): install it on PATH",
    ),
    variable("api", "PATH", "{place}/old", f"{_GIT}, the one on PATH is 2.35: upgrade it"),
    variable(
        "api",
        "PATH",
        "{place}/odd",
        f"{_GIT}, and the git on PATH does not say which it is: install it on PATH",
    ),
    Mistaken("edge", "--tls-cert none", "TLS cannot be used: No such file or directory: {place}/none"),
    Mistaken(
        "edge",
        "--tls-cert one.pem --tls-key none",
        "TLS cannot be used: No such file or directory: {place}/none",
    ),
    Mistaken(
        "edge",
        "--tls-cert one.pem --tls-key other.key",
        "TLS cannot be used: its key is not that of {place}/one.pem",
    ),
    Mistaken("edge", "--tls-cert one.pem", f"{_NO_PEM} {{place}}/one.pem"),
    Mistaken("edge", "--tls-cert file --tls-key one.key", f"{_NO_PEM} {{place}}/file"),
    Mistaken("edge", "--port {port}", "Cannot listen on 127.0.0.1:{port}: Address already in use"),
    Mistaken(
        "edge",
        "--port 0 --operations-port {port}",
        "Cannot listen on 127.0.0.1:{port}: Address already in use",
    ),
    Mistaken(
        "edge", "--host nowhere.invalid", "Cannot listen on nowhere.invalid:8081: Name or service not known"
    ),
    Mistaken("edge", "--host 192.0.2.1", "Cannot listen on 192.0.2.1:8081: Cannot assign requested address"),
]

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
        " `forgelet migrate --grant-to ROLE` as the role that owns the tables",
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
