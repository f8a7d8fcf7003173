"""The command `forgelet config`: settings and where each comes from."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import attrs
import click

from forgelet.frame import Group, table
from forgelet.instance import Instance

if TYPE_CHECKING:
    from common.settings import Sources

MASK = "***"


@click.group(cls=Group)
def config() -> None:
    """Show the settings of both processes."""


@config.command()
@click.option("--changed", is_flag=True, help="Show only settings without their default.")
@click.pass_obj
def show(instance: Instance, *, changed: bool) -> None:
    """Show all settings, and where each comes from.

    Secrets are masked. Flags of a separately started server are not known here.
    """
    rows = [
        *_rows("api", instance.api_sources, instance.api_settings, instance.own_variables),
        *_rows("edge", instance.edge_sources, instance.edge_settings, instance.own_variables),
    ]
    shown_rows = [row for row in rows if row["source"] != "default" or not changed]
    table(["process", "setting", "value", "source"], shown_rows)


def _rows(
    process: str, sources: "Sources[Any]", settings: Any, set_by_up: frozenset[str]
) -> Iterator[dict[str, Any]]:
    from common.settings import secret_in

    _, labels = sources.configured()
    files = {secret_in(field): field.name for field in sources.fields.values() if secret_in(field)}
    for name, field in sources.fields.items():
        value, source = getattr(settings, name), labels.get(name, "default")
        if name in files and getattr(settings, files[name]) is not None:
            source = f"the file of {files[name]}"
        if source in set_by_up:
            source = f"forgelet up ({source})"
        yield {"process": process, "setting": name, "value": _displayed(field, value), "source": source}


def _displayed(field: "attrs.Attribute[Any]", value: Any) -> Any:
    """Return the value as JSON, a mask for a secret, and a URL without its secret."""
    if field.repr not in (True, False):  # a function that masks
        text = str(value.get_secret_value() if hasattr(value, "get_secret_value") else value)
        return _masked(text) if text else ""
    return value if isinstance(value, bool | int | float | list | None) else str(value)


def _masked(text: str) -> str:
    parts = urlsplit(text)
    if not parts.scheme or (not parts.netloc and not parts.path.startswith("/")):
        return MASK
    user, at_sign, host = parts.netloc.rpartition("@")
    user = f"{user.partition(':')[0]}:{MASK}" if ":" in user else user
    query = f"?{MASK}" if "password" in parts.query.lower() else f"?{parts.query}" if parts.query else ""
    return f"{parts.scheme}://{user}{at_sign}{host}{parts.path}{query}"
