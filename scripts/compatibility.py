"""Prints docs/compatibility.md, out of the routes and what docs/compatibility.toml says of each; and what became of
public clients' tests:

python -m scripts.compatibility >docs/compatibility.md
"""

import functools
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from api_server.api import ROUTES
from api_server.namespaces.access import ProjectAccess
from api_server.web.routes import ResourceAccess, Role, Route
from api_server.web.unsupported import Ignored
from common.config_errors import ConfigError
from scripts.clients import outcomes

_CHECKOUT = Path(__file__).resolve().parents[1]
WRITTEN = _CHECKOUT / "docs/compatibility.toml"
TESTS = _CHECKOUT / "tests"

#: What is said of each begins with one of these.
KINDS = ("as GitLab", "differs: ", "beyond: ")
_IN_PATH = re.compile(r"{(\w+)(?::[^{}]*(?:{[^{}]*})?[^{}]*)?}")
_WHO = {
    "anyone": "a token of its own",
    "job": "a running job",
    "signed_in": "signed in",
    "administrator": "administrators",
}
_OPENED = {None: "who sees it", "repository": "who reads the repository", "builds": "who sees pipelines"}
HEAD = """# Compared with GitLab

This page compares each endpoint with GitLab 17. `python -m scripts.compatibility` generates it from the routes and from
`docs/compatibility.toml`, which describes the differences. `tests/scripts/test_references.py` checks it. [Keywords of
CI files](ci-keywords.md) have a page of their own.

For all endpoints:

- A forbidden action is 403, also if GitLab says 401 (mirrors, status checks). What the caller cannot see is 404.
- Without credentials the answer is 401, also for public projects. Only `GET /projects` lists these, in the short form.
- There are no avatars: every `avatar_url` is null, as in a GitLab without Gravatar if nobody has uploaded one.
- Every GET has an `ETag` and answers `If-None-Match`. Lists have no totals beyond 10,000 rows.
- GitLab's parameters without an effect here are accepted and named in `X-Ignored-Parameters`
  ([which](#ignored-parameters)). With `unsupported_parameters=refuse` they are 400.
- Tokens begin with `flpat-` (triggers' with `flptt-`, jobs' with `fljob-`), while GitLab's begin with `gl`.
- Texts and lists have [bounds](security.md#bounds).
- "Who" says who may call: the minimum role in the project or group, or another condition, and the tier that has it.
"""
#: In the order in which they are shown.
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
_CLIENTS = """`scripts/clients/run SUITE [FOLDER]` runs the unchanged tests of a client, written for a real GitLab,
against a forgelet of its own. Or it runs a program of `scripts/clients/programs/` with the calls that a client's users
make. It exits with status 1 if a result differs from this page. `scripts/clients/expected/` has the results and names
each call that works. File names are relative to the folder of the tests."""


def shown(route: Route) -> str:
    """As documentation writes it: `GET /projects/:id`."""
    return f"{route.method} {_IN_PATH.sub(lambda match: f':{match[1]}', route.path)}"


def routes() -> dict[str, Route]:
    """All of them, as they are shown."""
    return {shown(route): route for resource in ROUTES for route in resource.routes}


def written() -> dict[str, Any]:
    """What has been written down: `endpoints` by heading and name, what others meet (`identity`, `git`), and what is
    `absent`, with a path of it."""
    with WRITTEN.open("rb") as file:
        return tomllib.load(file)


def untried(notes: Mapping[str, Any]) -> Iterator[str]:
    """A sentence for each line that nothing was tried of: which no test is named for, or one that is not there or has
    nothing to do with the endpoint."""
    for name in (name for lines in notes["endpoints"].values() for name in lines):
        if not (named := notes["tests"].get(name)):
            yield f"{name}: name a test of it below [tests] in docs/compatibility.toml"
        for test in named or ():
            file, _, function = test.partition("::")
            if not _has(TESTS / file, function):
                yield f"{name}: there is no test {test}"
            elif _last_word(name) not in _text(TESTS / file):
                yield f"{name}: {file} does not name it"


@functools.cache
def _has(file: Path, function: str) -> bool:
    return file.exists() and f"def {function}(" in file.read_text(encoding="utf-8")


def _last_word(name: str) -> str:
    """Of an endpoint's path, in the singular: `triggers` and `trigger` are one."""
    return str(re.findall(r"/([a-z_]+)", name)[-1]).removesuffix("s")


@functools.cache
def _text(file: Path) -> str:
    """Of a file of tests, and of what it shares with others in its folder."""
    shared = [path for path in sorted(file.parent.glob("*.py")) if not path.name.startswith("test_")]
    return "".join(path.read_text(encoding="utf-8") for path in (file, *shared))


def document() -> str:
    """The whole of it. Raises `ConfigError` where nothing was tried of a line."""
    found, notes = routes(), written()
    if problem := next(untried(notes), None):
        raise ConfigError(problem)
    parts = [HEAD, "## Endpoints"]
    for heading, lines in notes["endpoints"].items():
        rows = [f"| `{name}` | {_who(found[name])} | {line} |" for name, line in lines.items()]
        parts += [f"### {heading}", _table("Endpoint", "Who", "Compared with GitLab", rows=rows)]
    parts += ["## Ignored parameters", _table("Endpoint", "Parameters", rows=_ignored(found))]
    for heading, lines in (("Identity tokens", notes["identity"]), ("git", notes["git"])):
        rows = [f"| {what} | {line} |" for what, line in lines.items()]
        parts += [f"## {heading}", _table("What", "Compared with GitLab", rows=rows)]
    rows = [f"| {what} | `{path}` |" for what, path in notes["absent"].items()]
    parts += [
        "## Not here",
        "Paths like these answer 404, below `/api/v4` in GitLab's words.",
        _table("What", "For example", rows=rows),
        "## Tests of public clients",
        _CLIENTS,
        outcomes.section(SUITES),
    ]
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def _table(*columns: str, rows: Iterable[str]) -> str:
    return "\n".join([f"| {' | '.join(columns)} |", "|" + "---|" * len(columns), *rows])


def _who(route: Route) -> str:
    access = route.access
    caller = "everybody" if access.strangers else _WHO.get(access.who, "")
    if isinstance(access, ResourceAccess):
        opened = _OPENED[access.feature if isinstance(access, ProjectAccess) else None]
        caller = access.role.title if access.role > Role.NO_ACCESS else opened
    tier = route.license.tier if route.license else "free"
    return caller if tier == "free" else f"{caller}; {tier.title()}"


def _ignored(found: Mapping[str, Route]) -> Iterator[str]:
    """Endpoints that ignore the same are one row."""
    names = {name: _names(route.ignores) for name, route in found.items() if route.ignores}
    for parameters in dict.fromkeys(names.values()):
        endpoints = ", ".join(f"`{name}`" for name, ignored in names.items() if ignored == parameters)
        yield f"| {endpoints} | {parameters} |"


def _names(ignored: Iterable[Ignored]) -> str:
    return ", ".join(
        f"`{one.name}`" + (" (refused)" if one.metadata.get("refused") else "")
        for one in sorted(ignored, key=lambda one: one.name)
    )


if __name__ == "__main__":
    print(document(), end="")
