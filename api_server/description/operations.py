"""A route as an OpenAPI operation."""

import inspect
import re
from typing import get_args

import attrs

from api_server.description.names import operation_id
from api_server.description.parameters import body_of, fields_of, parameters_of
from api_server.description.resources import tag_of
from api_server.description.responses import responses_of
from api_server.description.values import Schema
from api_server.settings import Offering
from api_server.web.params import public_name
from api_server.web.routes import Place, Role, Route

#: How the text of an endpoint of the document begins: `Endpoint 7. A log that ...`
_ENDPOINT = re.compile(r"Endpoint (\d+)[.:;]\s*")
_WHO = {
    "anyone": "No personal access token is needed.",
    "signed_in": "For everybody who is signed in.",
    "administrator": "For administrators.",
    "job": "For a running job, with its token.",
}


def operation_of(route: Route) -> tuple[Schema, dict[str, Schema]]:
    """The operation, and the schemas of its body by their names."""
    name = operation_id(route)
    body, schemas = body_of(route, f"{name.title().replace('_', '')}Body")
    endpoint, text = _told(route)
    operation: Schema = {
        "operationId": name,
        "tags": [tag_of(route)],
        "summary": name.replace("_", " ").capitalize(),
        "description": "\n\n".join(filter(None, [text, _who_may(route), _where(route), _ignored(route)])),
        "parameters": parameters_of(route),
        "requestBody": body,
        "responses": responses_of(route),
        "x-endpoint": endpoint,
        "x-role": route.access.role.title if isinstance(route.access, Place) and route.access.role else None,
        "x-scopes": list(route.scopes) if route.access.who not in ("anyone", "job") else None,
        "x-tier": route.feature.tier if route.feature else None,
        "x-ignored-parameters": _ignored_names(route) or None,
    }
    told = {key: value for key, value in operation.items() if value not in (None, [])}
    return told | {"security": _security(route)}, schemas


def _told(route: Route) -> tuple[int | None, str]:
    """The endpoint's number in docs/service-api.md, and what the handler says of itself."""
    text = inspect.getdoc(route.handler) or ""
    numbered = _ENDPOINT.match(text)
    text = re.sub(r"(?<!\n)\n(?!\n)", " ", text[numbered.end() :] if numbered else text)
    return int(numbered[1]) if numbered else None, text[:1].upper() + text[1:]


def _who_may(route: Route) -> str:
    access = route.access
    if access.strangers:
        return "For everybody, signed in or not."
    if not isinstance(access, Place):
        return _WHO[access.who]
    if access.role == Role.NO_ACCESS:
        return f"For everybody who can see the {access.who}."
    return f"For members of the {access.who} from {access.role.title} on."


def _where(route: Route) -> str:
    if route.feature is None:
        return ""
    only = f"From tier {route.feature.tier} on."
    if route.feature.offerings != get_args(Offering):
        only += f" Offerings: {', '.join(route.feature.offerings)}."
    return only


def _ignored(route: Route) -> str:
    if not (names := _ignored_names(route)):
        return ""
    return f"Accepted for GitLab's clients, without effect: {', '.join(f'`{name}`' for name in names)}."


def _ignored_names(route: Route) -> list[str]:
    return [public_name(field) for field in attrs.fields(route.ignores)] if route.ignores else []


def _security(route: Route) -> list[dict[str, list[str]]]:
    """Each of them is enough."""
    if route.access.who == "anyone":
        return _of_anyone(route)
    if route.access.who == "job":
        return [{"job_token": []}, {"bearer": []}, {"job_token_in_query": []}]
    found: list[dict[str, list[str]]] = [{"private_token": []}, {"bearer": []}]
    if route.takes_job_token:
        found.append({"job_token": []})
    return [*found, {}] if route.access.strangers else found


def _of_anyone(route: Route) -> list[dict[str, list[str]]]:
    """Credentials of their own kind may stand in the parameter `token`, and in a header where that may be missing."""
    token = next((field for field in fields_of(route) if field.name == "token"), None)
    if token is None or token.default is attrs.NOTHING:
        return []
    of_job = route.path.startswith("/jobs/{id}")
    return [{"job_token": []} if of_job else {"runner_token": []}, {}]
