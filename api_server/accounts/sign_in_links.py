"""Links with which somebody signs in without a password, once and within minutes.

They are made with the service's key, by the commands `forgelet user sign-in-link` and `forgelet up`. Nothing
is stored: every sign-in invalidates earlier links.
"""

import datetime
import hmac
import re

from api_server.state.secrets import SIGN_IN_TOKEN, Vault

LIFETIME = datetime.timedelta(minutes=15)
_TOKEN = re.compile(rf"{SIGN_IN_TOKEN}(\d{{1,18}})-(\d{{1,18}})-([\w-]{{27}})", re.ASCII)


def new_token(vault: Vault, user_id: int, sign_in_count: int, now: datetime.datetime) -> str:
    """Return the last part of the link's path, for a user who has signed in `sign_in_count` times."""
    until = int((now + LIFETIME).timestamp())
    return f"{SIGN_IN_TOKEN}{user_id}-{until}-{_seal(vault, user_id, until, sign_in_count)}"


def user_named(token: str, now: datetime.datetime) -> int | None:
    """Return the user id in a link that has not expired, or None. The link may be forged."""
    match = _TOKEN.fullmatch(token)
    return int(match[1]) if match and int(match[2]) > now.timestamp() else None


def is_valid(vault: Vault, token: str, sign_in_count: int) -> bool:
    """Return whether the link was made with the service's key and its user has not signed in since."""
    match = _TOKEN.fullmatch(token)
    return match is not None and hmac.compare_digest(
        match[3], _seal(vault, int(match[1]), int(match[2]), sign_in_count)
    )


def _seal(vault: Vault, user_id: int, until: int, sign_in_count: int) -> str:
    return vault.derived_token("", f"sign-in link: {user_id} {until} {sign_in_count}".encode())
