"""Prints docs/compatibility.md, out of the routes, what docs/compatibility.toml says of each, and the list of CI
keywords in api_server/ci/config/keywords.py; and what became of public clients' tests:

python -m scripts.compatibility >docs/compatibility.md
"""

import functools
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs

from api_server.api import ROUTES
from api_server.ci.config.keywords import reference
from api_server.namespaces.access import ProjectAccess
from api_server.web.access import Place, Role
from api_server.web.params import public_name
from api_server.web.routes import Route
from common.mistakes import Mistake
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
HEAD = """# Beside GitLab

Made by `python -m scripts.compatibility` out of the routes and of `docs/compatibility.toml`, which says of each what is
different for those who know GitLab 17, and of the list of CI keywords in `api_server/ci/config/keywords.py`;
`tests/scripts/test_compatibility.py` holds it to that.

Of all endpoints:

- What a caller may not do is 403, also where GitLab says 401 (mirrors, status checks); what she cannot see is 404.
- Without credentials the answer is 401, also about public projects; but `GET /projects` lists these in the short form.
- There are no avatars: every `avatar_url` is null, as in a GitLab without Gravatar where nobody has uploaded one.
- Every GET has an `ETag` and answers `If-None-Match`; lists say no totals beyond 10,000 rows.
- Parameters that GitLab knows and this service has no use for are named in `X-Ignored-Parameters`
  ([which](#ignored-parameters)); with `unsupported_parameters=refuse` they are 400.
- Tokens begin with `flpat-` (triggers' with `flptt-`, jobs' with `fljob-`), where GitLab's begin with `gl`.
- Texts and lists have [bounds](security.md#bounds).
- "Who" is who may call: the least role in the project or group, or what opens it, and the tier that has it.
"""
_KEYWORDS = """A file that uses one which is not supported is refused: `<keyword> is not supported by this service`.
What GitLab's own reference does not have is an unknown key.
What differs in how YAML is read stands in [Pipelines, jobs and runners](ci.md#the-configuration-language)."""

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
_CLIENTS = """`scripts/clients/run SUITE [FOLDER]` runs the tests that a client's authors run against a real GitLab, as
they are, against a forgelet of its own; or a program of `scripts/clients/programs/`, which makes the calls that a
client's users make. It ends with status 1 where anything is not as it is written down here, out of
`scripts/clients/expected/`, which names each call that works. Files are named below the folder of the tests."""


def shown(route: Route) -> str:
    """As documentation writes it: `GET /projects/:id`."""
    return f"{route.method} {_IN_PATH.sub(lambda match: f':{match[1]}', route.path)}"


def routes() -> dict[str, Route]:
    """All of them, as they are shown."""
    return {shown(route): route for resource in ROUTES for route in resource.routes}


def written() -> dict[str, Any]:
    """What has been written down: `endpoints` by heading and name, what `git` meets, and what is `absent`,
    with a path of it."""
    with WRITTEN.open("rb") as file:
        return tomllib.load(file)


def untried(said: Mapping[str, Any]) -> Iterator[str]:
    """A sentence for each line that nothing was tried of: which no test is named for, or one that is not there or has
    nothing to do with the endpoint."""
    for name in (name for lines in said["endpoints"].values() for name in lines):
        if not (named := said["tests"].get(name)):
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
    """The whole of it. Raises `Mistake` where nothing was tried of a line."""
    found, said = routes(), written()
    if problem := next(untried(said), None):
        raise Mistake(problem)
    parts = [HEAD, "## Endpoints"]
    for heading, lines in said["endpoints"].items():
        rows = [f"| `{name}` | {_who(found[name])} | {line} |" for name, line in lines.items()]
        parts += [f"### {heading}", _table("Endpoint", "Who", "Beside GitLab", rows=rows)]
    parts += ["## CI keywords", _KEYWORDS, _table("Keyword", "Beside GitLab", rows=_keywords())]
    parts += ["## Ignored parameters", _table("Endpoint", "Parameters", rows=_ignored(found))]
    rows = [f"| {what} | {line} |" for what, line in said["git"].items()]
    parts += ["## git", _table("What", "Beside GitLab", rows=rows)]
    rows = [f"| {what} | `{path}` |" for what, path in said["absent"].items()]
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
    who = "everybody" if access.strangers else _WHO.get(access.who, "")
    if isinstance(access, Place):
        opened = _OPENED[access.opens if isinstance(access, ProjectAccess) else None]
        who = access.role.title if access.role > Role.NO_ACCESS else opened
    tier = route.feature.tier if route.feature else "free"
    return who if tier == "free" else f"{who}; {tier.title()}"


def _keywords() -> Iterator[str]:
    for keyword in reference():
        note = f": {keyword.note}" if keyword.note else ""
        yield f"| `{keyword.name}` | {keyword.support}{note} |"


def _ignored(found: Mapping[str, Route]) -> Iterator[str]:
    """Endpoints that ignore the same are one row."""
    names = {name: _names(route.ignores) for name, route in found.items() if route.ignores is not None}
    for parameters in dict.fromkeys(names.values()):
        endpoints = ", ".join(f"`{name}`" for name, ignored in names.items() if ignored == parameters)
        yield f"| {endpoints} | {parameters} |"


def _names(ignored: type) -> str:
    return ", ".join(
        f"`{public_name(field)}`" + (" (refused)" if field.metadata.get("refused") else "")
        for field in sorted(attrs.fields(ignored), key=public_name)
    )


if __name__ == "__main__":
    print(document(), end="")
