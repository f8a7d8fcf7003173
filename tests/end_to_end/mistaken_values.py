"""Values of settings that are none: in flags, variables and the file."""

from tests.support.mistakes import Mistaken, file, variable

_PORT_OF_API = "has to be a whole number from 1 to 65535"
_PORT = "has to be a whole number from 0 to 65535"
_TIMEOUT = "has to be a number from 0.1 to 86400"
_WEB = "has to be a URL such as http://host or https://host"
_ORIGIN = f"{_WEB} without a path"
_MISSING = (
    "is missing: set FORGELET_API_{}, or {} in section [api_server] of the file that FORGELET_SETTINGS names"
)
_URL, _DATA = "FORGELET_API_DATABASE_URL", "FORGELET_API_DATA_DIR"

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
        "api commands",
        _URL,
        None,
        f"The setting database_url {_MISSING.format('DATABASE_URL', 'database_url')}",
    ),
    variable("api commands", _DATA, None, f"The setting data_dir {_MISSING.format('DATA_DIR', 'data_dir')}"),
    variable("api commands", _DATA, "", f"{_DATA} has to be a path"),
    variable(
        "api commands",
        _URL,
        "hunter2",
        f"{_URL} has to be a URL such as postgresql://host or postgres://host",
    ),
    variable("api commands", "FORGELET_API_PORT", "hunter2", f"FORGELET_API_PORT {_PORT_OF_API}"),
    variable("api commands", "FORGELET_API_PORT", "", f"FORGELET_API_PORT {_PORT_OF_API}"),
    variable("api commands", "FORGELET_API_WORK", "maybe", "FORGELET_API_WORK has to be true or false"),
    variable(
        "api commands", "FORGELET_API_TIER", "gold", "FORGELET_API_TIER has to be free, premium or ultimate"
    ),
    variable("api commands", "FORGELET_API_EDGE_URLS", "http://a,b", f"FORGELET_API_EDGE_URLS {_WEB}"),
    variable("edge", "FORGELET_EDGE_PORT", "99999", f"FORGELET_EDGE_PORT {_PORT}"),
    variable(
        "edge",
        "FORGELET_EDGE_PURGE_TOKEN",
        "a b",
        "FORGELET_EDGE_PURGE_TOKEN has to be visible ASCII characters without spaces",
    ),
    variable("edge", "FORGELET_EDGE_PORT", "1", f"--port {_PORT}", flags="--port 70000"),
]

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
