"""Keeping user names and passwords of remote repositories out of everything that is shown or logged."""

import base64
import re
from urllib.parse import quote, quote_plus, urlsplit

MASK = "*****"
#: User names that name a service, not a person, and stay visible.
VISIBLE_USERS = frozenset({"git"})

_USERINFO_IN_TEXT = re.compile(r"\b((?:https?|ssh|git)://)([^\s/?#'\"<>]*)@", re.IGNORECASE)


def mask_url(url: str) -> str | None:
    """`url` with user name and password replaced by asterisks; None when it cannot be parsed."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return None
    userinfo, at, host = parts.netloc.rpartition("@")
    return parts._replace(netloc=f"{_masked(userinfo)}@{host}" if at else host).geturl()


def sanitize(text: str, *, user: str | None = None, password: str | None = None) -> str:
    """`text` without credentials: those in URLs, and this `user` and `password` wherever they appear.

    Looks for the strings themselves, their percent-encoded forms, and base64 of either and of `user:password`
    (the Basic scheme, RFC 7617). A bare `ssh://` becomes empty, as GitLab has it.
    """
    if text == "ssh://":
        return ""
    text = _USERINFO_IN_TEXT.sub(lambda match: f"{match[1]}{_masked(match[2])}@", text)
    forms = sorted(_forms(user, password), key=len, reverse=True)
    if not forms:
        return text
    return re.sub("|".join(map(re.escape, forms)), MASK, text)


def _masked(userinfo: str) -> str:
    user, colon, _password = userinfo.partition(":")
    if not colon:
        return user if user in VISIBLE_USERS else MASK
    return f"{MASK}:{MASK}"


def _forms(user: str | None, password: str | None) -> set[str]:
    secrets = [secret for secret in (user, password) if secret and secret not in VISIBLE_USERS]
    forms = {form for secret in secrets for form in _encodings(secret)}
    if password:
        forms |= _base64_forms(f"{user or ''}:{password}")
    return forms


def _encodings(secret: str) -> set[str]:
    percent_encoded = {quote(secret), quote(secret, safe=""), quote_plus(secret)}
    lower_case = {re.sub("%[0-9A-F]{2}", lambda match: match[0].lower(), form) for form in percent_encoded}
    return {secret} | percent_encoded | lower_case | _base64_forms(secret)


def _base64_forms(secret: str) -> set[str]:
    data = secret.encode()
    return {
        form
        for encoded in (base64.b64encode(data).decode(), base64.urlsafe_b64encode(data).decode())
        for form in (encoded, encoded.rstrip("="))
    }
