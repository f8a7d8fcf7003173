"""Prints docs/settings.md, out of the classes that say which settings there are:

python -m scripts.settings_reference >docs/settings.md
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs

from api_server.settings import Settings as ApiSettings
from common.client_settings import ClientSettings
from common.settings import has_to_be
from storage_edge.settings import Settings as EdgeSettings

HEAD = """# Settings

Made by `python -m scripts.settings_reference` out of `api_server/settings.py`, `api_server/ci_settings.py`,
`api_server/repository_settings.py`, `storage_edge/settings.py` and `common/client_settings.py`;
`tests/scripts/test_settings_reference.py` holds it to that.

A setting `send_timeout` of the API server is `send_timeout` in the section `[api_server]` of the TOML file that
`FORGELET_SETTINGS` names; the variable `FORGELET_API_SEND_TIMEOUT` counts more, the flag `--send-timeout` most. Of the
storage edge it is the section `[edge]` and `FORGELET_EDGE_SEND_TIMEOUT`. Operators' commands
(`forgelet`) read the same file and variables as the API server.

- A list is an array in the file, `a,b` in a variable, and a flag that is given several times. Truths are `true` and
  `false` in the file; variables may say `yes`, `no`, `on`, `off`, `1` and `0` too; flags are `--work` and `--no-work`.
- Relative paths begin at the file's folder, or at the working directory.
- What does not fit is one sentence on standard error that names the flag, the variable or the place in the file, and
  exit status 2. So is a key or section of the file that nobody knows. A variable `FORGELET_API_...` or
  `FORGELET_EDGE_...` that names no setting is a warning: environments are shared with others, and with later versions.
- Those with a mark (↻) are read again on SIGHUP; others wait for the next start.
"""
_TABLE = "| Setting | Default | What it is | Has to be |\n|---|---|---|---|"


def reference() -> str:
    """The whole document."""
    own = attrs.fields_dict(ClientSettings)
    parts = [HEAD, "## Both processes\n", _table(ClientSettings, list(own.values()))]
    for title, settings_class in (("The API server", ApiSettings), ("The storage edge", EdgeSettings)):
        fields = [field for field in attrs.fields(settings_class) if field.name not in own]
        parts += [f"## {title}\n", _table(settings_class, fields)]
    return "\n".join(parts)


def _table(settings_class: type[ClientSettings], fields: list["attrs.Attribute[Any]"]) -> str:
    return "\n".join([_TABLE, *_rows(settings_class, fields), ""])


def _rows(settings_class: type[ClientSettings], fields: list["attrs.Attribute[Any]"]) -> Iterator[str]:
    for field in fields:
        mark = " ↻" if field.name in settings_class.reloaded else ""
        said = field.metadata["typed-settings"]["help"].rstrip(".")
        kind = has_to_be(field).removeprefix("has to be ")
        yield f"| `{field.name}`{mark} | {_default(field)} | {_uncapitalised(said)} | {kind} |"


def _uncapitalised(text: str) -> str:
    """Without its first capital, where it does not belong to a name such as PEM or PostgreSQL."""
    word = text.split(maxsplit=1)[0].rstrip(",")
    return text if any(letter.isupper() for letter in word[1:]) else text[0].lower() + text[1:]


def _default(field: "attrs.Attribute[Any]") -> str:
    if field.default is attrs.NOTHING:
        return "none, it is needed"
    if isinstance(field.default, bool):
        return str(field.default).lower()
    if isinstance(field.default, str | int | float | Path):
        return f"`{field.default}`" if str(field.default) else ""
    return ""


if __name__ == "__main__":
    print(reference(), end="")
