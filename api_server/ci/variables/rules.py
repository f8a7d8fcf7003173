"""What a CI/CD variable may look like. Pure; the words are GitLab's."""

import re

import attrs

MAX_VALUE = 10_000
MAX_TEXT = 255

_KEY = re.compile(r"[A-Za-z0-9_]+", re.ASCII)
_SCOPE = re.compile(r"[A-Za-z0-9_/${}. *-]+", re.ASCII)
#: A value that can be found in a log again: one line without spaces; where it may refer to others, of few characters.
_MASKABLE = re.compile(r"[A-Za-z0-9_+=/@:.~-]{8,}", re.ASCII)
_MASKABLE_RAW = re.compile(r"\S{8,}")


@attrs.frozen(kw_only=True)
class Values:
    """A variable as it is to be."""

    key: str
    value: str = attrs.field(repr=False)
    variable_type: str = "env_var"
    protected: bool = False
    masked: bool = False
    hidden: bool = False
    raw: bool = False
    environment_scope: str = "*"
    description: str | None = None


def problems(values: Values) -> dict[str, list[str]]:
    """Why this cannot be a variable, by attribute."""
    found: dict[str, list[str]] = {}
    for name, limit in (
        ("key", MAX_TEXT),
        ("value", MAX_VALUE),
        ("environment_scope", MAX_TEXT),
        ("description", MAX_TEXT),
    ):
        if len(getattr(values, name) or "") > limit:
            found[name] = [f"is too long (maximum is {limit} characters)"]
    if not _KEY.fullmatch(values.key):
        found["key"] = ["can contain only letters, digits and '_'."]
    if not _SCOPE.fullmatch(values.environment_scope):
        found["environment_scope"] = [
            "can contain only letters, digits, '-', '_', '/', '$', '{', '}', '.', '*' and spaces"
        ]
    if values.masked and not (_MASKABLE_RAW if values.raw else _MASKABLE).fullmatch(values.value):
        found.setdefault("value", ["is invalid"])
    return found
