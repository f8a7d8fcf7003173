"""What a request of a route carries, from the attrs class that reads it: path, query, or a body of JSON or a form."""

from collections.abc import Iterator
from typing import Any

import attrs

from api_server.description import glossary
from api_server.description.names import parameters_in_path
from api_server.description.values import (
    Schema,
    field_schema,
    in_text,
    is_list,
    is_required,
    object_of,
    single,
    wanted,
)
from api_server.web.params import public_name
from api_server.web.routes import ById, Route

#: Requests with these methods carry what their path does not in the query; others in a body.
_WITHOUT_BODY = frozenset({"GET", "DELETE"})
#: Credentials, which security schemes describe.
_CREDENTIALS = frozenset({"private_token", "job_token"})


def fields_of(route: Route) -> list["attrs.Attribute[Any]"]:
    parameters = route.parameters or (ById if "{id}" in route.path else None)
    return list(attrs.fields(parameters)) if parameters is not None else []


def parameters_of(route: Route) -> list[Schema]:
    """The operation's parameters in path and query."""
    in_path = parameters_in_path(route)
    found = [_in_path(field, route) for field in fields_of(route) if public_name(field) in in_path]
    if route.method in _WITHOUT_BODY or route.streams_body:
        for field in _beside_path(route):
            found += _in_query(public_name(field), field, required=is_required(field))
    return sorted(found, key=lambda one: (one["in"] != "path", not one["required"]))


def body_of(route: Route, component: str) -> tuple[Schema | None, dict[str, Schema]]:
    """The operation's request body, and the schemas to which it refers, by their names."""
    if route.streams_body:
        return {"required": True, "content": {route.streams_body: _streamed(route.streams_body)}}, {}
    fields = _beside_path(route) if route.method not in _WITHOUT_BODY else []
    if not fields or route.parameters is None:
        return None, {}
    schema = object_of(route.parameters, without=frozenset(parameters_in_path(route)) | _CREDENTIALS)
    for name, described in schema["properties"].items():
        _explain(described, name, route)
    content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{component}"}}}
    schemas = {component: schema}
    body = {"required": "required" in schema, "content": content}
    return body, schemas


def _beside_path(route: Route) -> list["attrs.Attribute[Any]"]:
    aside = {*parameters_in_path(route), *_CREDENTIALS}
    return [field for field in fields_of(route) if public_name(field) not in aside]


def _in_path(field: "attrs.Attribute[Any]", route: Route) -> Schema:
    name = public_name(field)
    schema = in_text(wanted(field))
    described = {"name": name, "in": "path", "required": True, "schema": schema}
    return _explain(described, name, route)


def _in_query(name: str, field: "attrs.Attribute[Any]", *, required: bool) -> Iterator[Schema]:
    """One parameter; of an object, one for each of its fields, as they are sent: `filter[environment_scope]`."""
    kind = single(wanted(field))
    if attrs.has(kind):
        for inner in attrs.fields(kind):
            yield from _in_query(f"{name}[{public_name(inner)}]", inner, required=False)
        return
    schema = field_schema(field, in_text)
    described: Schema = {"name": name, "in": "query", "required": required, "schema": schema}
    if is_list(kind):
        described["name"] = f"{name}[]"
    elif schema.get("type") == "object":
        described |= {"style": "deepObject", "explode": True}
    yield _explain(described, name)


def _explain(described: Schema, name: str, route: Route | None = None) -> Schema:
    if text := glossary.meaning(name, route):
        described["description"] = " ".join(filter(None, [text, described.get("description")]))
    return described


def _streamed(media_type: str) -> Schema:
    if media_type == "multipart/form-data":
        file = {"type": "string", "format": "binary"}
        return {"schema": {"type": "object", "properties": {"file": file}, "required": ["file"]}}
    return {"schema": {"type": "string", "format": "binary"}}
