"""Statements that the tools run beside the service."""

import contextlib
from collections.abc import Iterator
from typing import Any

import psycopg2


@contextlib.contextmanager
def autocommitting(url: str) -> Iterator[Any]:
    """Yield a cursor outside of transactions."""
    with contextlib.closing(psycopg2.connect(url)) as connection:
        connection.autocommit = True
        with connection.cursor() as cursor:
            yield cursor
