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

`python -m scripts.settings_reference` generates this page from the settings classes of both processes;
`tests/scripts/test_references.py` checks it.

Each setting can be given in three ways. Example: the API server's `send_timeout` is `send_timeout` in the section
`[api_server]` of the TOML file that `FORGELET_SETTINGS` names. The variable `FORGELET_API_SEND_TIMEOUT` overrides the
file, and the flag `--send-timeout` overrides both. For the storage edge, the section is `[edge]` and the variable
`FORGELET_EDGE_SEND_TIMEOUT`. Operators' commands (`forgelet`) read the same file and variables as the API server.

- A list is an array in the file, `a,b` in a variable, and a repeated flag. A boolean is `true` or `false` in the file;
  variables may also say `yes`, `no`, `on`, `off`, `1` and `0`; flags are `--work` and `--no-work`.
- Relative paths are relative to the file's folder; in variables and flags, to the working directory.
- An invalid setting is reported in one sentence that names the flag, the variable or the place in the file; the process
  exits with status 2. So is an unknown key or section of the file. An unknown variable `FORGELET_API_...` or
  `FORGELET_EDGE_...` is only a warning, because other programs and later versions share the environment.
- SIGHUP reads settings with a mark (↻) again; the others wait for the next start.
"""
_TABLE = "| Setting | Default | Meaning | Must be |\n|---|---|---|---|"


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
        help_text = field.metadata["typed-settings"]["help"].rstrip(".")
        kind = has_to_be(field).removeprefix("has to be ")
        yield f"| `{field.name}`{mark} | {_default(field)} | {_uncapitalised(help_text)} | {kind} |"


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
