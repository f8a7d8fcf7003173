"""The names of operations and their parameters, and the contents of a route's requests as JSON Schema.

Values are described in the form that clients should send. The description of the whole API mentions once that
other forms are accepted (numbers and truth values as text, an empty text for a value that is not sent).
"""

import datetime
import enum
import itertools
import re
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Annotated, Any, Literal

import attrs
import orjson

from api_server.web.params import MAX_ITEMS, AtMost, CommaList, Unset, public_name
from api_server.web.routes import ById, Route

_PATTERN = re.compile(r"{(\w+)(?::(?:[^{}]|{[^{}]*})*)?}")
_VERBS = {"GET": "get", "POST": "create", "PUT": "update", "PATCH": "update", "DELETE": "delete"}
#: Segments of paths that are a single verb of two words.
_TWO_WORD_VERBS = frozenset({"cherry_pick"})


def path_of(route: Route) -> str:
    """Return the path in OpenAPI's notation: `{ref}`, without a pattern."""
    return _PATTERN.sub(r"{\1}", route.path)


def parameters_in_path(route: Route) -> list[str]:
    return _PATTERN.findall(route.path)


def operation_id(route: Route) -> str:
    """Return an id such as `list_project_jobs`, `cancel_project_job`, `update_group_member`."""
    return "_".join((verb_of(route), *(word for word in _nouns(route) if word)))


def answers_list(route: Route) -> bool:
    return route.method == "GET" and route.handler.__name__.startswith("list_")


def verb_of(route: Route) -> str:
    if action := _action(route):
        return action
    if answers_list(route):
        return "list"
    if route.method == "DELETE" and not route.path.endswith("}"):
        # several things, or the caller's own
        return route.handler.__name__.partition("_")[0]
    return _VERBS[route.method]


def _action(route: Route) -> str:
    """Return the verb at the end of the path, after which its handler is named, or an empty text if the path
    ends with a noun."""
    last, name = _segments(route)[-1], route.handler.__name__
    if last.startswith("{") or route.method == "GET":
        return ""
    if last in _TWO_WORD_VERBS or name == last or name.startswith(f"{last}_"):
        return last if last in _TWO_WORD_VERBS else last.partition("_")[0]
    verb, _, rest = last.partition("_")
    return verb if rest and name.startswith(f"{verb}_") else ""


def _segments(route: Route) -> list[str]:
    path = re.sub("^/user(?=/|$)", "/current_user", path_of(route)).replace(".{", "/{")
    return re.sub("[-.]", "_", path.strip("/")).split("/")


def _nouns(route: Route) -> list[str]:
    """Return the nouns of the path from the outside in: `project`, `pipeline`, `jobs`."""
    segments, action = _segments(route), _action(route)
    if action:
        segments[-1] = segments[-1].removeprefix(action).strip("_")
    words = []
    for segment, following in itertools.zip_longest(segments, segments[1:], fillvalue=None):
        if segment is None or segment.startswith("{"):
            continue
        is_made = following is None and route.method == "POST" and not action
        names_one = following in ("", "self") or (following or "").startswith("{")
        words.append(singular(segment) if names_one or is_made else segment)
    if route.method == "GET" and len(segments) > 1 and segments[-1].startswith("{"):
        within, last = segments[-2:]
        if within == singular(within):  # `latest/{suffix_path}` in addition to `latest`
            words.append(last.strip("{}").removesuffix("_id"))
    return words


def singular(noun: str) -> str:
    for ending, suffix in (("ies", "y"), ("ches", "ch"), ("sses", "ss"), ("uses", "us")):
        if noun.endswith(ending):
            return noun.removesuffix(ending) + suffix
    return noun.removesuffix("s") if not noun.endswith(("ss", "us")) else noun


Schema = dict[str, Any]

_SIMPLE: Mapping[Any, Schema] = {
    int: {"type": "integer", "format": "int64"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    str: {"type": "string"},
    datetime.date: {"type": "string", "format": "date"},
    datetime.datetime: {"type": "string", "format": "date-time"},
}


#: The JSON Schema keywords for restrictions in a field's metadata that a validator enforces.
_KEYWORDS = {"pattern": "pattern", "most": "maxItems", "least": "minimum", "greatest": "maximum"}


def accepted_type(field: "attrs.Attribute[Any]") -> Any:
    """Return the annotation of the values that the field accepts: its own, or, for a converter that accepts
    anything, the one in `metadata={"takes": ...}`."""
    return field.metadata.get("takes", field.type)


def schema_of(annotation: Any) -> Schema:
    """Return the schema of the annotation in a JSON body."""
    arms = [arm for arm in _arms(annotation) if arm is not Unset]
    real = [arm for arm in arms if arm is not type(None)]
    schemas = [_schema_of_one(arm) for arm in real]
    if typing.get_origin(real[0]) is CommaList:
        schemas.append(_with_commas(schemas[0]["items"]))
    schema = schemas[0] if len(schemas) == 1 else {"anyOf": schemas}
    return _nullable(schema) if len(real) < len(arms) else schema


def in_text(annotation: Any) -> Schema:
    """Return the schema of the annotation in a path, a query or a form, where there is no null."""
    real = [arm for arm in _arms(annotation) if arm not in (Unset, type(None))]
    schemas = [_schema_of_one(arm) for arm in real]
    return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}


def _with_commas(items: Schema) -> Schema:
    """Return the schema of a list as one text."""
    described: Schema = {"type": "string", "description": "The same with commas between them."}
    if "enum" in items:
        item = "|".join(map(str, items["enum"]))
    elif items.get("type") == "integer":
        item = "-?[0-9]+"
    else:
        return described
    return described | {"pattern": f"^(({item})(,({item}))*)?$"}


def single(annotation: Any) -> Any:
    """Return the annotation without null and `Unset`."""
    return next(arm for arm in _arms(annotation) if arm not in (Unset, type(None)))


def object_of(parameters: type, without: frozenset[str] = frozenset()) -> Schema:
    """Return the schema of a JSON object with the fields of an attrs class, by their public names."""
    fields = [field for field in attrs.fields(parameters) if public_name(field) not in without]
    schema: Schema = {
        "type": "object",
        "properties": {
            public_name(field): _default_in_words(field_schema(field, schema_of)) for field in fields
        },
    }
    if required := [public_name(field) for field in fields if is_required(field)]:
        schema["required"] = required
    return schema


def field_schema(field: "attrs.Attribute[Any]", describe: Callable[[Any], Schema]) -> Schema:
    """Return the schema of a field, with its default."""
    schema = dict(describe(accepted_type(field)))
    if "minimum" in field.metadata:
        schema["minimum"] = field.metadata["minimum"]
    for name_in_metadata, keyword in _KEYWORDS.items():
        if name_in_metadata in field.metadata:
            schema[keyword] = field.metadata[name_in_metadata]
    if field.metadata.get("present"):
        schema = _present(schema)
    if (default := _default(field)) is not None:
        schema["default"] = default
    return schema


def _default_in_words(schema: Schema) -> Schema:
    """Move the default into the description: generated clients (openapi-typescript) would require members of
    bodies that have a `default`, or would always send them."""
    default = schema.pop("default", "")
    if default == "":
        return schema
    text = default if isinstance(default, str) else orjson.dumps(default).decode()
    return schema | {"description": f"Default: `{text}`."}


def _present(schema: Schema) -> Schema:
    """Return a schema that excludes empty and blank texts, and empty lists."""
    if "anyOf" in schema:
        return schema | {"anyOf": [_present(arm) for arm in schema["anyOf"]]}
    if schema.get("type") == "array":
        return schema | {"minItems": 1}
    return {"pattern": r"\S"} | schema | {"minLength": 1}


def is_required(field: "attrs.Attribute[Any]") -> bool:
    return field.default is attrs.NOTHING


def _default(field: "attrs.Attribute[Any]") -> Any:
    """Return the default as JSON, or None if it is not to be shown."""
    if isinstance(field.default, (bool, int, float, str)) and not isinstance(field.default, enum.Enum):
        return field.default
    return field.default.value if isinstance(field.default, enum.IntEnum) else None


def _arms(annotation: Any) -> tuple[Any, ...]:
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return typing.get_args(annotation)
    return (annotation,)


def _schema_of_one(kind: Any) -> Schema:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        bound = next(bound for bound in arguments[1:] if isinstance(bound, AtMost))
        return {"type": "string", "maxLength": bound.characters}
    if origin is Literal:
        return _enumeration(arguments)
    if origin in (list, CommaList):
        return {"type": "array", "items": schema_of(arguments[0]), "maxItems": MAX_ITEMS}
    if origin is dict:
        return {"type": "object", "additionalProperties": True if arguments[1] is Any else {"type": "string"}}
    if kind is Any:
        return {}
    if attrs.has(kind):
        return object_of(kind)
    if issubclass(kind, enum.Enum):
        names = {"x-enum-varnames": [member.name for member in kind]}  # generated clients use these as names
        return _enumeration([member.value for member in kind]) | names
    return dict(_SIMPLE[kind])


def _enumeration(choices: Iterable[Any]) -> Schema:
    """Return an enumeration that contains, of values that differ in spelling only (`assigned-to-me`), the
    first one: generated clients make names of them."""
    spelt = {str(choice).replace("-", "_"): choice for choice in reversed(list(choices))}
    return {
        "type": "string" if isinstance(next(iter(spelt.values())), str) else "integer",
        "enum": list(reversed(spelt.values())),
    }


def _nullable(schema: Schema) -> Schema:
    if "enum" in schema:
        return schema | {"type": [schema["type"], "null"], "enum": [*schema["enum"], None]}
    if isinstance(schema.get("type"), str):
        return schema | {"type": [schema["type"], "null"]}
    return schema if not schema else {"anyOf": [*schema.get("anyOf", [schema]), {"type": "null"}]}


def is_list(kind: Any) -> bool:
    return typing.get_origin(kind) in (list, CommaList)


_MEANINGS: Mapping[str, str] = {
    "page": "Number of the page, from 1 on.",
    "per_page": "Items on a page; more than 100 are 100.",
    "pagination": "`keyset` walks long lists in equal time, by the `Link` header; else pages are counted.",
    "cursor": "Where the page begins, from the `Link` header of the page before; with `pagination=keyset`.",
    "order_by": "By what the list is ordered.",
    "sort": "`asc` or `desc`.",
    "search": "Part of what is looked for.",
    "access_level": "10 Guest, 15 Planner, 20 Reporter, 30 Developer, 40 Maintainer, 50 Owner.",
    "sha": "The commit's SHA, or where that is allowed the name of a branch or tag.",
    "ref": "Name of a branch or tag.",
    "merge_request_iid": "Number of the merge request within its project.",
    "mirror_branch_regex": "Which branches are pushed; from tier premium on, without `only_protected_branches`.",
    "member_role_id": "A role that administrators have made; from tier ultimate on.",
    "expires_at": "Last day, as `2027-01-31`.",
    "visibility": "Who sees it: `private` members, `internal` all who are signed in, `public` everybody.",
    "created_after": "Nothing that is older, ISO 8601.",
    "created_before": "Nothing that is newer, ISO 8601.",
    "updated_after": "Nothing that was changed earlier, ISO 8601.",
    "updated_before": "Nothing that was changed later, ISO 8601.",
}


def meaning(name: str, route: Route | None) -> str:
    """Return the meaning of the parameter `name` of `route`, or an empty text if the name says it."""
    if name == "id" and route is not None and route.access.kind in ("project", "group"):
        return f"ID of the {route.access.kind}, or its full path, percent-encoded: `group%2Fapp`."
    return _MEANINGS.get(name, "")


#: Requests with these methods have their other parameters in the query instead of a body.
_WITHOUT_BODY = frozenset({"GET", "DELETE"})
#: Credentials, which security schemes describe.
_CREDENTIALS = frozenset({"private_token", "job_token"})


def fields_of(route: Route) -> list["attrs.Attribute[Any]"]:
    parameters = route.parameters or (ById if "{id}" in route.path else None)
    return list(attrs.fields(parameters)) if parameters is not None else []


def parameters_of(route: Route) -> list[Schema]:
    """Return the operation's parameters in path and query."""
    in_path = parameters_in_path(route)
    parameters = [_in_path(field, route) for field in fields_of(route) if public_name(field) in in_path]
    if route.method in _WITHOUT_BODY or route.streams_body:
        for field in _beside_path(route):
            parameters += _in_query(public_name(field), field, required=is_required(field))
    return sorted(parameters, key=lambda parameter: (parameter["in"] != "path", not parameter["required"]))


def body_of(route: Route, component: str) -> tuple[Schema | None, dict[str, Schema]]:
    """Return the operation's request body, and the schemas to which it refers, by name."""
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
    schema = in_text(accepted_type(field))
    described = {"name": name, "in": "path", "required": True, "schema": schema}
    return _explain(described, name, route)


def _in_query(name: str, field: "attrs.Attribute[Any]", *, required: bool) -> Iterator[Schema]:
    """Yield the parameter, or, for an object, one parameter for each of its fields in the form
    `filter[environment_scope]`."""
    kind = single(accepted_type(field))
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
    if text := meaning(name, route):
        described["description"] = " ".join(filter(None, [text, described.get("description")]))
    return described


def _streamed(media_type: str) -> Schema:
    if media_type == "multipart/form-data":
        file = {"type": "string", "format": "binary"}
        return {"schema": {"type": "object", "properties": {"file": file}, "required": ["file"]}}
    return {"schema": {"type": "string", "format": "binary"}}
