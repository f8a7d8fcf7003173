"""A database with an owner and another role that serves it."""

import contextlib
from collections.abc import Iterator
from urllib.parse import urlsplit, urlunsplit

import attrs

from forgelet.local.embedded_postgres import Cluster, autocommitting
from tests.support.forge import new_name


@attrs.frozen
class Roles:
    """The URLs of one database for its owner, and for the role `name`, which owns nothing."""

    owner: str
    name: str
    serving: str


@contextlib.contextmanager
def empty_database(postgres: Cluster) -> Iterator[str]:
    """Yield the name of an empty database, which is dropped at the end of the block."""
    name = new_name("empty").replace("-", "_")
    with autocommitting(postgres.url()) as owner:
        owner.execute(f"CREATE DATABASE {name}")
    yield name
    with autocommitting(postgres.url()) as owner:
        owner.execute(f"DROP DATABASE {name} WITH (FORCE)")


def with_another_role(postgres: Cluster, owner: str) -> Roles:
    """Create a role without any rights."""
    name, parts = new_name("serving").replace("-", "_"), urlsplit(owner)
    with autocommitting(postgres.url("postgres", "postgres")) as superuser:
        superuser.execute(f"CREATE ROLE {name} LOGIN PASSWORD %s", [parts.password])
    serving = urlunsplit(parts._replace(netloc=parts.netloc.replace("forgelet:", f"{name}:", 1)))
    return Roles(owner, name, serving)
