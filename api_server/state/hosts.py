"""Connection strings that name several hosts, as PostgreSQL's own clients take them."""

from psycopg2.extensions import make_dsn, parse_dsn

#: What is a list where there are several hosts.
_EACH = ("host", "hostaddr", "port")


def each_host(url: str) -> list[str]:
    """The connection strings of the hosts of `url`, in its order, each with what the URL asks of a server
    (target_session_attrs). The URL as it is where there is one host, or where hosts have to be compared.

    libpq tries hosts by itself, but whoever does not wait in its functions has no limit of time for each: one that
    does not answer would take all of it. Raises psycopg2's ProgrammingError for what is no connection string, and
    ValueError where there are other numbers of hosts than of ports.
    """
    known = parse_dsn(url)
    lists = {name: known[name].split(",") for name in _EACH if name in known}
    number = max((len(values) for values in lists.values()), default=1)
    if number == 1 or known.get("target_session_attrs") == "prefer-standby":
        return [url]
    shared = {name: value for name, value in known.items() if name not in lists}
    each = zip(*(_repeated(values, number) for values in lists.values()), strict=True)
    return [
        make_dsn(**shared, **{name: value for name, value in zip(lists, values, strict=True) if value})
        for values in each
    ]


def _repeated(values: list[str], number: int) -> list[str]:
    """One port is that of all hosts."""
    return values * number if len(values) == 1 else values
