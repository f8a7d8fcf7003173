"""Heads of the chain, kept where who owns the database does not reach: in the log, and in the object store.

An object's name is the head itself, so none is ever written over: `audit/heads/<position>-<hash in hex>`.
"""

import re
from collections.abc import AsyncIterator

import structlog

from api_server.audit import chain_queries
from api_server.audit.chain import Head
from api_server.state.database import Database
from api_server.state.objects import Objects

log = structlog.get_logger(__name__)

FOLDER = "audit/heads"
_NAME = re.compile(r"[0-9]{19}-[0-9a-f]{64}")


def key_of(head: Head) -> str:
    """In the order of positions."""
    return f"{FOLDER}/{head.position:019}-{head.hash.hex()}"


async def kept(objects: Objects) -> list[Head]:
    """Every head in the object store, the earliest first. Raises `Unavailable`."""
    names = [key.rpartition("/")[2] async for key in objects.keys(FOLDER)]
    return [Head.parse(name.replace("-", ":")) for name in sorted(names) if _NAME.fullmatch(name)]


async def keep(database: Database, objects: Objects) -> None:
    """Writes the present head down, where it is not there yet; says in the log what is no longer as it was kept."""
    known = await kept(objects)
    for head in known[-1:]:
        if await chain_queries.hash_at(database, head.position) != head.hash:
            log.error("the audit trail was cut or written anew: run `audit verify`", kept_head=str(head))
    link = await chain_queries.last_link(database)
    if link is None or (head := Head(link.position, link.hash)) in known:
        return
    log.info("head of the audit trail", head=str(head))
    await objects.put(key_of(head), _content(head, database))


async def _content(head: Head, database: Database) -> AsyncIterator[bytes]:
    yield f"{head} {database.now.isoformat()}\n".encode()
