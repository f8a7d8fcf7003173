"""Each keyword of GitLab's public JSON schema is in the table of keywords, and works as the table says."""

import base64
import copy
import hashlib
import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from attrs import evolve
from check_jsonschema.builtin_schemas import get_builtin_schema

from api_server.ci.config.context import Context, OtherProject, RemoteFile, Repository, Version
from api_server.ci.config.errors import CiConfigError
from api_server.ci.config.execution import REPORTS
from api_server.ci.config.keywords import DIFFERS, IGNORED, Keyword, reference
from api_server.ci.config.pipeline import plan_pipeline
from api_server.ci.config.plan import Plan

from .planning import BRANCH, FULL, context, errors, text_of

SCHEMA = get_builtin_schema("vendor.gitlab-ci")
TABLE = {keyword.name: keyword for keyword in reference()}
#: Last parts of the places whose keys are freely chosen names.
FREE = {"variables", "matrix", "id_tokens", "inputs"}
GLOBAL = set(SCHEMA["properties"]) - {"$schema", "pages"}
#: `!reference`, which is not a key, and keywords that cause the refusal of another file, or are only shown to people.
NOT_SEEN_IN_PLANS = {
    "!reference",
    "include:artifact",
    "include:integrity",
    "include:job",
    "trigger:include:integrity",
    "spec:inputs:description",
}


def _keywords(node: Any, place: str, met: frozenset[str]) -> Iterator[str]:
    """Yield the keywords below a node of the schema in GitLab's notation, some more than once."""
    if not isinstance(node, dict):
        return
    target = node.get("$ref")
    if target is not None and target not in met:
        inner = SCHEMA
        for part in target.removeprefix("#/").split("/"):
            inner = inner[part]
        yield from _keywords(inner, place, met | {target})
    alternatives = [one for name in ("anyOf", "oneOf", "allOf") for one in node.get(name, ())]
    for inner in (*alternatives, *node.get("patternProperties", {}).values()):
        yield from _keywords(inner, place, met)
    for name in ("items", "additionalProperties"):
        yield from _keywords(node.get(name), place, met)
    for key, inner in node.get("properties", {}).items():
        name = f"{place}:{key}" if place else key
        yield name
        yield from _keywords(inner, name, met)


def _all_keywords() -> Iterator[str]:
    yield from _keywords(SCHEMA["definitions"]["job"], "", frozenset())
    for key in GLOBAL:
        yield key
        yield from _keywords(SCHEMA["properties"][key], "" if key == "default" else key, frozenset())


KEYWORDS = sorted(set(_all_keywords()))


def row(name: str) -> Keyword | None:
    """Return the row of a keyword, or of a keyword above it that is not supported, with everything in it. Return None
    if there is none."""
    if name in TABLE:
        return TABLE[name]
    above = row(name.rpartition(":")[0]) if ":" in name else None
    return above if above is not None and above.support == "not supported" else None


def test_the_table_has_each_keyword_once_and_says_something_of_it() -> None:
    assert len(KEYWORDS) > 250
    assert [name for name in KEYWORDS if row(name) is None] == []
    assert len(TABLE) == len(reference())
    assert not set(DIFFERS) - {name for name, keyword in TABLE.items() if keyword.support == "differs"}
    assert not set(IGNORED) - {name for name, keyword in TABLE.items() if keyword.support == "ignored"}


def written(name: str) -> str:
    """Return a file that uses this keyword for any purpose."""
    first, *_ = parts = name.split(":")
    text = "x"
    for part in reversed(parts):
        listed = part in ("rules", "needs", "services") and text != "x"
        text = f"{{{part}: {f'[{text}]' if listed else text}}}"
    if first == "spec":
        return f"{text[1:-1]}\n---\na: {{script: x}}"
    if first in ("workflow", "include"):
        return f"{text[1:-1]}\na: {{script: x}}"
    return f"a: {{{'' if first == 'trigger' else 'script: x, '}{text[1:-1]}}}"


@pytest.mark.parametrize("name", [name for name in TABLE if TABLE[name].support == "not supported"])
def test_what_the_table_says_is_not_supported_is_refused_by_its_name(name: str) -> None:
    end = f"{name.rpartition(':')[2]} is not supported by this service"
    assert any(error.endswith(end) for error in errors(written(name))), written(name)


#: Files that use all supported keywords, so that each keyword has an effect on the pipeline. Rules that do not match
#: have `when: never`, and jobs that `only` and `except` exclude would exist without them.
FILES = [
    FULL,
    text_of("includes-and-rules"),
    text_of("jobs-and-triggers"),
    text_of("other-keywords"),
    "{workflow: {rules: [{if: $CI_COMMIT_BRANCH, when: never}]}, a: {script: x}}",
    """
spec:
  description: What this is for
  inputs:
    size: {type: number, default: 1, options: [1, 2], description: How large}
    branch: {default: main}
    where:
      rules:
        - {if: '$[[ inputs.branch ]] == "x"', default: there}
        - {if: '$[[ inputs.branch ]] == "main"', default: here}
build: {script: '$[[ inputs.size ]] $[[ inputs.branch ]] $[[ inputs.where ]]'}
""",
    """
include:
  - {local: inputs.yml, inputs: {word: other}}
other:
  script: x
  needs: [{project: group/other, job: built, ref: main, artifacts: true}, {pipeline: $UPSTREAM, job: built}]
mirror:
  needs: {pipeline: group/other}
children:
  trigger: {include: [{local: local.yml, inputs: {a: b}}, {artifact: made.yml, job: maker}]}
start:
  trigger: {project: group/other, inputs: {a: b}}
""",
]
REMOTE = b"remote: {stage: first, script: x}"
KINDS = json.dumps(dict.fromkeys(set(REPORTS) - {"cobertura", "jacoco"}, "a"))
DIGEST = base64.b64encode(hashlib.sha256(REMOTE).digest()).decode()
#: Files that are refused only because of the keyword.
REFUSED = [
    "{spec: {inputs: {a: {default: b, regex: ^a}}}, a: {script: x}}",
    "{spec: {inputs: {a: {default: b, options: [a]}}}, a: {script: x}}",
    "{spec: {inputs: {a: {type: number, default: b}}}, a: {script: x}}",
    """
spec: {inputs: {c: {default: c}, a: {rules: [{if: '$[[ inputs.c ]] == "c"', default: b, options: [a]}]}}}
a: {script: x}
""",
    "{spec: {component: [none]}, a: {script: x}}",
]
PATHS = {
    "README.md": "",
    "a.lock": "lock",
    "local.yml": "local: {stage: first, script: local}",
    "inputs.yml": "spec: {inputs: {word: {default: one}}}\n---\ninputs: {script: '$[[ inputs.word ]]'}",
}


def whole() -> Context:
    """Return a context with all files that are included."""

    def other(ref: str | None) -> Repository:
        files = {
            "other.yml": f"other: {{stage: first, script: at {ref}}}",
            "templates/component.yml": "component: {stage: first, script: component}",
            f"at-{ref}": "",
        }
        return Repository(read=files.get, paths=files.keys, project="group/other", sha="1" * 40)

    planned = context(
        predefined=BRANCH | {"CI_SERVER_FQDN": "forge.example.org"}, files=PATHS, changed=["changed.md"]
    )
    return evolve(
        planned,
        repository=evolve(planned.repository, changed_since=lambda _: []),
        project=lambda *_: OtherProject(at=other, version=lambda version: Version(repository=other(version))),
        template={"Template.gitlab-ci.yml": "template: {stage: first, script: template}"}.get,
        remote={"https://example.org/remote.yml": RemoteFile(content=REMOTE)},
    )


def outcome(file: dict[str, Any]) -> Plan | tuple[str, ...]:
    header = {key: value for key, value in file.items() if key == "spec"}
    documents = [header] * bool(header) + [{key: value for key, value in file.items() if key != "spec"}]
    try:
        return plan_pipeline("\n---\n".join(map(json.dumps, documents)), whole())
    except CiConfigError as refused:
        return refused.errors


Path = tuple[str | int, ...]


def places(value: Any, place: str = "", path: Path = (), *, named: bool = True) -> Iterator[tuple[str, Path]]:
    """Yield each keyword in a file, and the path to it. The keys are keywords unless `named` is false."""
    if isinstance(value, list):
        for number, item in enumerate(value):
            yield from places(item, place, (*path, number), named=named)
    elif isinstance(value, dict):
        for key, inner in value.items():
            at = (*path, key)
            if not named or (not path and key not in GLOBAL):
                yield from places(inner, place, at)
            else:
                name = f"{place}:{key}" if place else key
                yield name, at
                yield from places(inner, "" if name == "default" else name, at, named=key not in FREE)


def without(file: dict[str, Any], path: Path) -> dict[str, Any]:
    rest = value = copy.deepcopy(file)
    for part in path[:-1]:
        value = value[part]
    del value[path[-1]]
    return rest


def parsed(text: str) -> dict[str, Any]:
    return dict(yaml.safe_load(text.replace("DIGEST", DIGEST).replace("REPORTS", KINDS)))


USED: dict[str, list[tuple[dict[str, Any], Path]]] = {}
for text in (*FILES, *REFUSED):
    file = parsed(text)
    for name, path in places(file):
        USED.setdefault(name, []).append((file, path))


def test_the_files_that_use_all_keywords_are_accepted() -> None:
    for text in FILES:
        assert isinstance(outcome(parsed(text)), Plan), outcome(parsed(text))


@pytest.mark.parametrize(
    "name",
    [name for name in TABLE if TABLE[name].support != "not supported" and name not in NOT_SEEN_IN_PLANS],
)
def test_a_keyword_that_the_table_does_not_call_ignored_changes_the_pipeline(name: str) -> None:
    changes = [outcome(file) != outcome(without(file, path)) for file, path in USED[name]]
    assert any(changes) or TABLE[name].support == "ignored"
