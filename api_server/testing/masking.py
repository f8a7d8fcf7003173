"""What is shown of requests and answers without the credentials in them."""

import contextlib
import re
from collections.abc import Mapping
from typing import Any

import orjson
from multidict import CIMultiDictProxy

from api_server.web.errors import ApiError
from api_server.web.request_data import fields_of
from common.logs import REDACTED, SECRET_NAME, redact

#: Content types whose bytes are text, beside `text/...`.
_JSON = "application/json"
_FORM = "application/x-www-form-urlencoded"
#: What a request means by it that a variable is not masked; everything else may mean that it is.
_NO = (None, False, 0, "", "false", "0", "no", "off", "f", "n")
#: Who changes a variable names it in the path, and need not say that it is masked.
_OF_A_VARIABLE = re.compile(r"/variables/[^/]+$")


def headers(all_: CIMultiDictProxy[str]) -> dict[str, str]:
    """By their names in lower case; several of one name are joined by commas."""
    named: dict[str, str] = {}
    for name, value in all_.items():
        key, shown = name.lower(), REDACTED if SECRET_NAME.search(name) else redact(value)
        named[key] = f"{named[key]}, {shown}" if key in named else shown
    return named


def query(encoded: str) -> Any:
    """As the service reads it: `page=2&scope[]=failed` is `{"page": "2", "scope": ["failed"]}`. As it was sent where
    it cannot be read."""
    try:
        return masked(fields_of(encoded))
    except ApiError:
        return redact(f"?{encoded}")[1:]


def content(content_type: str, data: bytes | None) -> Any:
    """JSON as JSON, whatever it is called; forms as a query, text as text; None for everything else."""
    try:
        if not data:
            return None
        if content_type == _JSON or content_type.endswith("+json"):
            return masked(orjson.loads(data))
        if content_type != _FORM and not content_type.startswith("text/"):
            return None
        if data.lstrip()[:1] in (b"{", b"["):
            with contextlib.suppress(orjson.JSONDecodeError):
                return masked(orjson.loads(data))
        return query(data.decode()) if content_type == _FORM else redact(data.decode())
    except ValueError:  # not what it is said to be
        return None


def sent(path: str, shown: Any) -> Any:
    """What a request to `path` has sent, masked already: without the value of a variable that it changes."""
    if isinstance(shown, dict) and "value" in shown and _OF_A_VARIABLE.search(path):
        return shown | {"value": REDACTED}
    return shown


def masked(value: Any) -> Any:
    """Texts under names of secrets are hidden, in whatever depth, and tokens wherever they stand."""
    match value:
        case str():
            return redact(value)
        case list():
            return [masked(item) for item in value]
        case dict():
            hidden = _secret_names(value)
            return {name: _hidden(one) if name in hidden else masked(one) for name, one in value.items()}
    return value


def _secret_names(named: Mapping[str, Any]) -> set[str]:
    """Of a CI/CD variable the value is a secret, where its key is called like one or it is masked in logs."""
    names = {name for name in named if SECRET_NAME.search(name) and not name.endswith("_at")}
    is_masked = any(named.get(name) not in _NO for name in ("masked", "masked_and_hidden", "hidden"))
    if "value" in named and (is_masked or SECRET_NAME.search(str(named.get("key", "")))):
        names.add("value")
    return names


def _hidden(value: Any) -> Any:
    if isinstance(value, list):
        return [_hidden(item) for item in value]
    return REDACTED if isinstance(value, str) and value else masked(value)
