"""The OpenAPI 3.1 document of the API, made from the same declarations by which it answers."""

from collections.abc import Iterable
from importlib import metadata, resources
from typing import Any

import orjson

from api_server.description import operations
from api_server.description.answers import components, error_schema
from api_server.description.operations import operation_of
from api_server.description.parameters import Schema, path_of
from api_server.web.routes import Route

_NAME = "recorded"


def recorded_examples() -> dict[str, Any]:
    """Return the examples by operation: `request` (JSON, or null without a body), `status`, and `response`
    (JSON, a text, or null)."""
    text = resources.files("api_server.description").joinpath("examples.json").read_bytes()
    examples: dict[str, Any] = orjson.loads(text)
    return examples


def show_example(operation: Schema, example: dict[str, Any] | None) -> None:
    """Add the example to the bodies of the operation."""
    if example is None:
        return
    documented = operation["responses"][str(example["status"])]
    for about, value in (
        (documented, example["response"]),
        (operation.get("requestBody"), example["request"]),
    ):
        if about is not None and value is not None:
            for content in about.get("content", {}).values():
                content["examples"] = {_NAME: {"value": value}}


_ABOUT = """\
A small source-hosting and CI service that speaks GitLab's `/api/v4`.

**Credentials.** A personal, project or group access token in `PRIVATE-TOKEN` or as `Authorization: Bearer`; a running \
job's token in `JOB-TOKEN`. They may be the parameters `private_token` and `job_token` too. Administrators may act as \
others by `Sudo: <id or name>`.

**Parameters** of `GET` and `DELETE` stand in the query, those of others in a body of JSON, of an HTML form or of \
several parts, or in the query too. Arrays are `name[]=a&name[]=b` in queries and forms, objects `name[key]=value`. \
Numbers and truths may be sent as text; what is empty counts as not sent.

**Lists** come in pages: follow the header `Link` with `rel="next"`. `pagination=keyset` walks long ones in equal time.

**Conditional requests.** Every `GET` answers an `ETag`, and 304 to the `If-None-Match` that names it. Each path that \
answers `GET` answers `HEAD` too.

**Errors** are `{"message": ...}`, or `{"error": ...}` for parameters that cannot be read. 429 and 503 have \
`Retry-After`. What a caller cannot see is 404.
"""
_SCHEMES: dict[str, Schema] = {
    "private_token": {
        "type": "apiKey",
        "in": "header",
        "name": "PRIVATE-TOKEN",
        "description": "A personal, project or group access token; `x-scopes` names the scopes of which it needs one.",
    },
    "bearer": {"type": "http", "scheme": "bearer", "description": "The same tokens, or a running job's."},
    "job_token": {
        "type": "apiKey",
        "in": "header",
        "name": "JOB-TOKEN",
        "description": "A running job's token.",
    },
    "job_token_in_query": {
        "type": "apiKey",
        "in": "query",
        "name": "job_token",
        "description": "The same, in the address.",
    },
    "runner_token": {
        "type": "apiKey",
        "in": "header",
        "name": "RUNNER-TOKEN",
        "description": "A runner's authentication token, which may stand in the parameter `token` too.",
    },
}


def document(routes: Iterable[Route], base_path: str = "") -> Schema:
    """Return the description of all `routes` in JSON form; `base_path` is that of the service's URL:
    `/forgelet`."""
    paths: dict[str, Schema] = {}
    bodies: dict[str, Schema] = {}
    recorded = recorded_examples()
    for route in routes:
        operation, schemas = operation_of(route)
        show_example(operation, recorded.get(operation["operationId"]))
        paths.setdefault(path_of(route), {})[route.method.lower()] = operation
        bodies |= schemas
    used = {tag for path in paths.values() for described in path.values() for tag in described["tags"]}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "forgelet",
            "version": metadata.version("forgelet"),
            "summary": "GitLab's API, as far as forgelet has it",
            "description": _ABOUT,
            "license": {"name": "MIT", "identifier": "MIT"},
        },
        "servers": [{"url": f"{base_path}/api/v4"}],
        "tags": [{"name": tag, "description": operations.RESOURCE_DESCRIPTIONS[tag]} for tag in sorted(used)],
        "paths": paths,
        "components": {
            "schemas": _open(components()) | bodies | {"Error": error_schema()},
            "responses": operations.shared_responses(),
            "headers": operations.shared_headers(),
            "securitySchemes": _SCHEMES,
        },
    }


def _open(part: Any) -> Any:
    """Remove `additionalProperties: false`, with which the tests check that answers contain only described
    keys: clients generated by openapi-generator would refuse additional keys of later versions, or of
    GitLab."""
    if isinstance(part, dict):
        closed = part.get("additionalProperties") is False
        return {
            key: _open(value) for key, value in part.items() if not (closed and key == "additionalProperties")
        }
    return [_open(item) for item in part] if isinstance(part, list) else part
