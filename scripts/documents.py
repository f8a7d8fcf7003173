"""Write the parts of docs/ that are made from the code, between `<!-- generated: NAME -->` and `<!-- end -->`: `python
-m scripts.documents`."""

import functools
import inspect
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import click

from api_server.api import ROUTES
from api_server.ci.config.keywords import Keyword
from api_server.ci.config.keywords import reference as keywords_reference
from api_server.namespaces.access import ProjectAccess
from api_server.settings import Settings as ApiSettings
from api_server.web.routes import ResourceAccess, Role, Route
from api_server.web.unsupported import Ignored
from common.client_settings import ClientSettings
from common.config_errors import ConfigError
from common.settings import has_to_be
from forgelet.command_line import forgelet
from scripts.clients import outcomes
from scripts.harness.report import filled, markdown_table
from storage_edge.settings import Settings as EdgeSettings

_CHECKOUT = Path(__file__).resolve().parents[1]
DOCS = _CHECKOUT / "docs"


def document(name: str) -> str:
    """Return the page of docs/ with its generated parts made anew."""
    return filled((DOCS / name).read_text(encoding="utf-8"), PARTS[name])


# --- settings -------------------------------------------------------------------------------------------------------


def settings(settings_class: type[ClientSettings]) -> str:
    """Return the table of the settings that this class has in addition to the shared ones."""
    shared = set() if settings_class is ClientSettings else set(attrs.fields_dict(ClientSettings))
    fields = [field for field in attrs.fields(settings_class) if field.name not in shared]
    rows = [_setting(field, field.name in settings_class.reloaded) for field in fields]
    return markdown_table("Setting", "Default", "Meaning", "Must be", rows=rows)


def _setting(field: "attrs.Attribute[Any]", is_reloaded: bool) -> Sequence[str]:
    help_text = field.metadata["typed-settings"]["help"].rstrip(".")
    kind = has_to_be(field).removeprefix("has to be ")
    return f"`{field.name}`{' ↻' * is_reloaded}", _default(field), _uncapitalised(help_text), kind


def _uncapitalised(text: str) -> str:
    """Return the text with a small first letter, unless the first word is a name such as PEM or PostgreSQL."""
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


# --- commands -------------------------------------------------------------------------------------------------------

#: Commands whose options are the settings of a process.
_SERVERS = {"api", "edge", "worker"}
_OF_ALL = (
    "Every command except `api`, `edge` and `worker` also takes these options, before or after its name:\n"
)
_OF_SERVERS = "Its options are its settings: see [settings](settings.md) or `forgelet {} --help`.\n"


def commands() -> str:
    """Return the help of all commands."""
    context = click.Context(forgelet, info_name="forgelet")
    shared = [option for option in forgelet.get_params(context) if option.name in {"data_dir", "json"}]
    parts = [_help(forgelet), _OF_ALL, _options(context, shared), *_sections(context, forgelet)]
    return "\n".join(parts).rstrip()


def _sections(context: click.Context, group: click.Group) -> Iterator[str]:
    for name in group.list_commands(context):
        _, command, _ = group.resolve_command(context, [name])
        assert command is not None
        below = click.Context(command, info_name=name, parent=context, **command.context_settings)
        yield f"{'##' if context.parent is None else '###'} {below.command_path}\n"
        yield _help(command)
        if name in _SERVERS:
            yield _OF_SERVERS.format(name)
        elif isinstance(command, click.Group):
            yield from _sections(below, command)
        else:
            yield f"```text\n{' '.join([below.command_path, *command.collect_usage_pieces(below)])}\n```\n"
            options = [option for option in command.params if isinstance(option, click.Option)]
            if any(option.get_help_record(below) for option in options):
                yield _options(below, options)


def _options(context: click.Context, parameters: Sequence[click.Parameter]) -> str:
    records = filter(None, (option.get_help_record(context) for option in parameters))
    cells = ([text.replace("|", r"\|").strip() for text in record] for record in records)
    return markdown_table("Option", "What it is", rows=[(f"`{names}`", text) for names, text in cells]) + "\n"


def _help(command: click.Command) -> str:
    text = inspect.cleandoc(command.help or "").replace("\f", "")
    assert text, command.name
    return f"{text}\n"


# --- keywords of CI files -------------------------------------------------------------------------------------------


def keywords() -> str:
    return markdown_table("Keyword", "Here", "Note", rows=map(_keyword, keywords_reference()))


def _keyword(keyword: Keyword) -> Sequence[str]:
    support = "refused" if keyword.support == "not supported" else keyword.support
    return f"`{keyword.name}`", support, keyword.note or "-"


# --- compared with GitLab -------------------------------------------------------------------------------------------

_TESTS = _CHECKOUT / "tests"
_IN_PATH = re.compile(r"{(\w+)(?::[^{}]*(?:{[^{}]*})?[^{}]*)?}")
_WHO = {
    "anyone": "a token of its own",
    "job": "a running job",
    "signed_in": "signed in",
    "administrator": "administrators",
}
_OPENED = {None: "who sees it", "repository": "who reads the repository", "builds": "who sees pipelines"}
#: Suites of `scripts/clients/run`, in the order of the page.
SUITES = (
    "python-gitlab",
    "gitbeaker",
    "perl",
    "go-gitlab",
    "ruby-gitlab",
    "ansible",
    "semantic-release",
    "mcp-gitlab",
    "mcp-server-gitlab",
    "dulwich",
    "isomorphic-git",
    "git-lfs",
)


@functools.cache
def comparison() -> Mapping[str, Any]:
    """Return docs/compatibility.toml: `endpoints` by heading and name, `absent` features with an example of a path,
    and `tests` by endpoint."""
    return tomllib.loads((DOCS / "compatibility.toml").read_text(encoding="utf-8"))


@functools.cache
def routes() -> dict[str, Route]:
    """Return all routes by method and path as documentation writes them: `GET /projects/:id`."""
    return {_shown(route): route for resource in ROUTES for route in resource.routes}


def _shown(route: Route) -> str:
    return f"{route.method} " + _IN_PATH.sub(r":\1", route.path)


def endpoints() -> str:
    """Return a table for each heading. Raise `ConfigError` if a line has no test."""
    if problem := next(untested(comparison()), None):
        raise ConfigError(problem)
    parts = []
    for heading, lines in comparison()["endpoints"].items():
        rows = [(f"`{name}`", _who(routes()[name]), line) for name, line in lines.items()]
        parts += [f"### {heading}", markdown_table("Endpoint", "Who", "Compared with GitLab", rows=rows)]
    return "\n\n".join(parts)


def untested(notes: Mapping[str, Any]) -> Iterator[str]:
    """Yield a sentence for each line without a test, and for each test that does not exist or whose file does not name
    the endpoint."""
    for name in (name for lines in notes["endpoints"].values() for name in lines):
        if not (tests := notes["tests"].get(name)):
            yield f"{name}: name a test of it below [tests] in docs/compatibility.toml"
        for test in tests or ():
            file, _, function = test.partition("::")
            if f"def {function}(" not in _text(_TESTS / file):
                yield f"{name}: there is no test {test}"
            elif _last_word(name) not in _text(_TESTS / file) + _shared_text((_TESTS / file).parent):
                yield f"{name}: {file} does not name it"


def _last_word(name: str) -> str:
    """Return the last word of an endpoint's path in the singular, so that `triggers` and `trigger` are the same."""
    return str(re.findall(r"/([a-z_]+)", name)[-1]).removesuffix("s")


@functools.cache
def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8") if file.exists() else ""


@functools.cache
def _shared_text(folder: Path) -> str:
    """Return the text of the modules of a folder that its tests share."""
    return "".join(_text(file) for file in sorted(folder.glob("*.py")) if not file.name.startswith("test_"))


def _who(route: Route) -> str:
    access = route.access
    caller = "everybody" if access.anonymous else _WHO.get(access.kind, "")
    if isinstance(access, ResourceAccess):
        opened = _OPENED[access.feature if isinstance(access, ProjectAccess) else None]
        caller = access.role.title if access.role > Role.NO_ACCESS else opened
    tier = route.license.tier if route.license else "free"
    return caller if tier == "free" else f"{caller}; {tier.title()}"


def ignored() -> str:
    """Return the table of the parameters that endpoints ignore; endpoints that ignore the same ones share a row."""
    names = {name: _parameters(route.ignores) for name, route in routes().items() if route.ignores}
    rows = []
    for parameters in dict.fromkeys(names.values()):
        alike = ", ".join(f"`{name}`" for name, others in names.items() if others == parameters)
        rows.append((alike, parameters))
    return markdown_table("Endpoint", "Parameters", rows=rows)


def _parameters(ignores: Iterable[Ignored]) -> str:
    return ", ".join(
        f"`{parameter.name}`{' (refused)' if parameter.metadata.get('refused') else ''}"
        for parameter in sorted(ignores, key=lambda parameter: parameter.name)
    )


def absent() -> str:
    rows = [(subject, f"`{path}`") for subject, path in comparison()["absent"].items()]
    return markdown_table("What", "For example", rows=rows)


#: The function that makes each generated part, by page of docs/ and name of the part.
PARTS: Mapping[str, Mapping[str, Callable[[], str]]] = {
    "settings.md": {
        "both": partial(settings, ClientSettings),
        "api": partial(settings, ApiSettings),
        "edge": partial(settings, EdgeSettings),
    },
    "commands.md": {"commands": commands},
    "ci-keywords.md": {"keywords": keywords},
    "compatibility.md": {
        "endpoints": endpoints,
        "ignored": ignored,
        "absent": absent,
        "clients": partial(outcomes.section, SUITES),
    },
}

if __name__ == "__main__":
    for page in PARTS:
        (DOCS / page).write_text(document(page), encoding="utf-8")
