"""The keys that sign identity tokens: created at the first start, shared by all processes of a database, and
replaced by a command.

Other services verify tokens with keys that they have fetched and may cache, so a new key is published for
some time before it signs, and an old one until all tokens that it has signed have expired.
"""

import asyncio
import datetime
import functools
from collections.abc import AsyncIterator, Mapping
from typing import Any, cast

import attrs
import orjson
import structlog
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from joserfc import jwt
from joserfc.jwk import RSAKey

from api_server.accounts.user_queries import hold_start
from api_server.ci.identity import queries
from api_server.ci.identity.queries import SealedKey
from api_server.services import Key, Services
from api_server.state import audit_trail
from api_server.state.audit_trail import INSTANCE, Author
from api_server.state.database import LookupCache, Transaction
from api_server.state.secrets import Vault

log = structlog.get_logger(__name__)

ALGORITHM = "RS256"
_BITS = 2048
#: How long other services may cache the keys.
REMEMBERED = datetime.timedelta(minutes=15)
#: How long a key is published before it signs.
SHOWN_BEFORE = datetime.timedelta(hours=1)
#: No job runs longer, so no token is valid longer.
LONGEST_JOB = datetime.timedelta(days=31)

#: The public keys as JSON text; anybody may ask for them, so they are cached for a moment.
PUBLIC_KEYS = Key[LookupCache[str]]("identity_keys")


@attrs.frozen
class NewKey:
    """A newly created key."""

    kid: str
    #: A JWK, as JSON.
    public: str
    #: PEM.
    private: str = attrs.field(repr=False)


def new_key() -> NewKey:
    """Create a key, which takes some tenths of a second of processor time."""
    key = RSAKey.generate_key(_BITS)
    kid = key.thumbprint()
    public = key.as_dict(private=False, kid=kid, use="sig", alg=ALGORITHM)
    return NewKey(kid, orjson.dumps(public).decode(), key.as_pem(private=True).decode())


@attrs.frozen
class Signer:
    """A decrypted key."""

    _kid: str
    _key: RSAKey = attrs.field(repr=False)

    def sign(self, claims: Mapping[str, Any]) -> str:
        """Return the signed token, which takes about a millisecond."""
        return jwt.encode({"kid": self._kid, "alg": ALGORITHM}, dict(claims), self._key)


def opened(sealed: SealedKey, vault: Vault) -> Signer:
    """Return the signer that uses the key."""
    # Checking whether the key's factors are prime takes 50 ms and is not needed: this service has created and
    # sealed the key.
    pem = vault.decrypt(sealed.private_key).encode()
    private = load_pem_private_key(pem, None, unsafe_skip_rsa_key_validation=True)
    return Signer(sealed.kid, RSAKey.import_key(cast("RSAPrivateKey", private)))


async def ensure_key(services: Services) -> AsyncIterator[None]:
    """Create the first key of a database."""
    if not await queries.any_key(services.database):
        async with services.database.transaction() as transaction:
            await hold_start(transaction)
            if not await queries.any_key(transaction):
                key = await asyncio.to_thread(new_key)
                await _add(transaction, key, services.vault, services.now)
                log.info("made the first key for identity tokens", kid=key.kid)
    yield


async def rotate(services: Services, author: Author, *, revoke: bool) -> NewKey:
    """Create the next key, which signs after it has been published for `SHOWN_BEFORE`.

    `revoke` is for keys that may have been stolen: the new key signs at once and all others are removed, so
    tokens signed by them become invalid as soon as services fetch the keys again.
    """
    key = await asyncio.to_thread(new_key)
    about = INSTANCE.target(None, key.kid)
    async with services.database.transaction() as transaction:
        if revoke:
            await _add(transaction, key, services.vault, services.now)
            await queries.remove_others(transaction, key.kid)
            message = f"Made {key.kid} the key for identity tokens and revoked all others"
            await audit_trail.record(transaction, "identity_key_rotated", author, about, message)
        else:
            await _add(transaction, key, services.vault, services.now + SHOWN_BEFORE)
            await audit_trail.record(transaction, "identity_key_rotated", author, about)
    return key


async def _add(transaction: Transaction, key: NewKey, vault: Vault, signs_from: datetime.datetime) -> None:
    await queries.add_key(transaction, key.kid, key.public, vault.encrypt(key.private), signs_from)


async def public_keys(services: Services) -> str:
    """Return the JWK set, as JSON."""
    database = services.database
    return await services[PUBLIC_KEYS].get("all", lambda: queries.public_keys(database)) or "{}"


async def forget(services: Services) -> None:
    """Remove the keys whose tokens have all expired."""
    async with services.database.transaction() as transaction:
        await queries.remove_replaced(transaction, services.now - LONGEST_JOB)


def setup(services: Services) -> None:
    """Add the background work."""
    services.queue.add_periodic("forget_identity_keys", "11 4 * * *", functools.partial(forget, services))
