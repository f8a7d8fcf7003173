"""What values of settings have to be: the metadata of their fields, and reading them out of texts and TOML."""

import ipaddress
import re
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin
from urllib.parse import urlsplit

import attrs
from typed_settings import SecretStr


@attrs.frozen
class Form:
    """What the value of a setting, or each text of its list, has to be; no text at all is right too, if it may be."""

    name: str
    fits: Callable[[Any], bool]
    may_be_empty: bool = True


_FORM = "form"
_FILE_OF = "file of"
_NEEDS = "needs"
_DIFFERS = "differs"

Metadata = dict[str, Any]


def number(least: float, most: float) -> Metadata:
    """The metadata of a field that holds a number of this range; whole bounds mean a whole number."""
    if isinstance(least, int):
        name = f"a whole number from {least} to {most}"
    else:
        name = f"a number from {least:g} to {most:g}"
    return {_FORM: Form(name, lambda value: least <= value <= most)}


# Ranges that many settings have. What nobody would set is refused too: a digit too many, or another unit.


def port(least: int = 1) -> Metadata:
    """The metadata of a field that holds a port; from 0 on where its help says what 0 means, here as below."""
    return number(least, 65535)


def count(least: int = 1) -> Metadata:
    """Of a number of things."""
    return number(least, 10**9)


def size(least: int = 1) -> Metadata:
    """Of bytes."""
    return number(least, 2**50)


def whole_seconds(least: int = 1) -> Metadata:
    """Of a lifetime."""
    return number(least, 10**9)


def timeout(least: float = 0.1) -> Metadata:
    """Of seconds that are waited for; to wait for less would only keep the process busy."""
    return number(least, 86400.0)


def url(*schemes: str, bare: bool = False, several: bool = False) -> Metadata:
    """The metadata of a field that holds URLs of these schemes; `bare` ones have nothing but a host and a port,
    `several` may stand in one text, with spaces between them."""
    examples = " or ".join(f"{scheme}://{_AFTER_SCHEME.get(scheme, 'host')}" for scheme in schemes)
    kind = "one or more URLs with spaces between them," if several else "a URL"
    name = f"{kind} such as {examples}{' without a path' if bare else ''}"

    def fits(text: str) -> bool:
        return all(_is_url(one, schemes, bare=bare) for one in (text.split() if several else [text]))

    return {_FORM: Form(name, fits)}


def network() -> Metadata:
    """The metadata of a field that holds IP addresses and networks."""
    return {_FORM: Form("an address or a network such as 10.0.0.0/8", _is_network)}


def matching(name: str, pattern: str, *, may_be_empty: bool = True) -> Metadata:
    """The metadata of a field whose texts match `pattern` as a whole; `name` says what they are."""
    fits = re.compile(pattern).fullmatch
    return {_FORM: Form(name, lambda text: fits(text) is not None, may_be_empty)}


def host() -> Metadata:
    """The metadata of a field that says where to listen; nothing at all would be all addresses of the machine."""
    return matching("an address or the name of a host", r"[\w.:%-]+", may_be_empty=False)


def token() -> Metadata:
    """The metadata of a field that holds what goes into a header field."""
    return matching("visible ASCII characters without spaces", r"[\x21-\x7e]+")


def file_of(secret: str) -> Metadata:
    """The metadata of a field that names a file which holds the setting `secret`: flags are in process lists."""
    return {_FILE_OF: secret}


def needs(other: str) -> Metadata:
    """The metadata of a field that means something only beside the field `other`."""
    return {_NEEDS: other}


def other_than(other: str) -> Metadata:
    """The metadata of a field that must not have the value of the field `other`, but both may be nothing."""
    return {_DIFFERS: other}


def form_of(field: "attrs.Attribute[Any]") -> Form | None:
    """What the field's metadata say of its values."""
    form: Form | None = field.metadata.get(_FORM)
    return form


def secret_in(field: "attrs.Attribute[Any]") -> str | None:
    """The setting that is in the file which the field names."""
    name: str | None = field.metadata.get(_FILE_OF)
    return name


def has_to_be(field: "attrs.Attribute[Any]") -> str:
    """How a sentence goes on that says what the field's values are."""
    form, kind = form_of(field), _kind(field)
    if form is not None:
        return f"has to be {form.name}"
    if get_origin(kind) is Literal:
        *others, last = get_args(kind)
        return f"has to be {', '.join(others)} or {last}"
    return f"has to be {_NOUNS.get(kind, 'a text')}"


def fits(field: "attrs.Attribute[Any]", value: Any) -> bool:
    """Whether a value of the field's type, or each of its list, has the field's form."""
    form = form_of(field)
    values = value if isinstance(value, list) else [value]
    return form is None or all(
        form.may_be_empty if one is None or str(one) == "" else form.fits(one) for one in values
    )


def contradiction(settings: Any, label: Callable[[str], str]) -> str | None:
    """Says which two settings do not go together."""
    for field in attrs.fields(type(settings)):
        value = getattr(settings, field.name)
        needed, different = field.metadata.get(_NEEDS), field.metadata.get(_DIFFERS)
        if value and needed and not getattr(settings, needed):
            return f"{label(field.name)} is of no use without {label(needed)}"
        if value and different and value == getattr(settings, different):
            return f"{label(field.name)} has to differ from {label(different)}"
    return None


def out_of_text(field: "attrs.Attribute[Any]", text: str) -> Any:
    """The value that a variable's text means. Raises ValueError."""
    kind = _kind(field)
    if kind is bool:
        return _truth(text)
    if kind is int and re.fullmatch(r"[+-]?[0-9]{1,18}", text.strip()):
        return int(text)
    if kind is float and text.isascii() and "_" not in text:
        return float(text)
    if kind is Path:
        return _path(field, text, Path.cwd())
    if get_origin(kind) is list:
        return [part.strip() for part in text.split(",") if part.strip()]
    if kind in (int, float) or not _is_choice(kind, text):
        raise ValueError
    return kind(text) if kind is SecretStr else text


def out_of_toml(field: "attrs.Attribute[Any]", value: Any, folder: Path) -> Any:
    """The value that stands in a TOML file in `folder`, of which relative paths are. Raises ValueError."""
    kind = _kind(field)
    if kind is Path and isinstance(value, str):
        return _path(field, value, folder)
    if get_origin(kind) is list and isinstance(value, list) and all(isinstance(one, str) for one in value):
        return value
    if kind is float and type(value) in (int, float):
        return float(value)
    if kind in (bool, int) and type(value) is kind:
        return value
    if kind not in (bool, int, float, Path) and isinstance(value, str) and _is_choice(kind, value):
        return kind(value) if kind is SecretStr else value
    raise ValueError


_NOUNS = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    Path: "a path",
    list[str]: "a list of texts",
}


def _kind(field: "attrs.Attribute[Any]") -> Any:
    """The field's type; of `Path | None` the path."""
    kind = field.type
    if get_origin(kind) in (types.UnionType, Union):
        return next(one for one in get_args(kind) if one is not type(None))
    return kind


def _truth(text: str) -> bool:
    meanings: Mapping[str, bool] = {
        **dict.fromkeys(("true", "t", "yes", "y", "on", "1"), True),
        **dict.fromkeys(("false", "f", "no", "n", "off", "0"), False),
    }
    try:
        return meanings[text.strip().lower()]
    except KeyError:
        raise ValueError from None


def _path(field: "attrs.Attribute[Any]", text: str, folder: Path) -> Path | None:
    if text and "\0" not in text:
        return (folder / text).resolve()
    if text or field.default is attrs.NOTHING:
        raise ValueError
    return None


def _is_choice(kind: Any, text: str) -> bool:
    if get_origin(kind) is list:
        return False
    return get_origin(kind) is not Literal or text in get_args(kind)


#: What follows where it is not a host that is needed.
_AFTER_SCHEME = {"file": "/folder", "s3": "bucket"}
#: Without a host these mean a socket of this machine.
_LOCAL_TOO = frozenset({"postgresql", "postgres"})
_WEB = frozenset({"http", "https"})


def _is_url(text: str, schemes: tuple[str, ...], *, bare: bool) -> bool:
    try:
        parts = urlsplit(text)
        if parts.scheme not in schemes or not text.isprintable():
            return False
        if parts.scheme in _LOCAL_TOO:
            return _is_connection_string(text, parts.netloc)
        if parts.port == 0:
            return False
    except ValueError:  # a port that is none, half an IPv6 address
        return False
    if parts.scheme == "file":
        return not parts.netloc and parts.path.startswith("/")
    if parts.scheme in _WEB and (" " in text or parts.query or parts.fragment):
        return False
    if bare and (parts.path not in ("", "/") or "@" in parts.netloc):
        return False
    return bool(parts.hostname)


def _is_connection_string(text: str, netloc: str) -> bool:
    """PostgreSQL's, with one host or several, or none. What cannot be decoded libpq would repeat, with the password.
    Raises ValueError for a port that is none."""
    hosts = netloc.rpartition("@")[2].split(",")
    if "://" not in text or any(urlsplit(f"//{host}").port == 0 for host in hosts):
        return False
    return re.search("%(?![0-9A-Fa-f]{2})|%00", text) is None


def _is_network(text: str) -> bool:
    try:
        ipaddress.ip_network(text, strict=False)
    except ValueError:
        return False
    return True
