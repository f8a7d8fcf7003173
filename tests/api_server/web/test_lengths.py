"""Whatever names something is of a bounded length, on every route that writes (decision D11)."""

import io
import json
import typing
from collections.abc import Iterator
from typing import Annotated, Any

import attrs

from api_server.web.params import AtMost, AtMostBytes, public_name
from api_server.web.routes import Route
from tests.support.deviations import Deviations
from tests.support.forge import Forge
from tests.support.route_table import ROUTES, name_of, path_of

#: Names of parameters that end up in a row: names, lines about something, addresses, texts.
KEPT = {
    "name", "title", "path", "username", "email", "description", "url", "external_url", "target_url", "website_url",
    "bio", "location", "organization", "public_email", "labels", "add_labels", "tag_list", "maintenance_note", "key",
    "default_branch", "ci_config_path", "author_name", "author_email", "commit_message", "merge_commit_message",
    "message", "mirror_branch_regex", "host_keys", "system_id", "invite_source", "environment_scope", "shared_secret",
    "value", "tag_name", "branch", "source_branch", "target_branch", "password",
    "static_objects_external_storage_url", "static_objects_external_storage_auth_token",
    "outbound_local_requests_whitelist", "body",
}  # fmt: skip
#: Those that another rule bounds, which has words of its own.
ELSEWHERE = {
    "title": "merge_requests/changes.py",
    "body": "merge_requests/notes/rules.py",
    "shared_secret": "status_checks/services.py",
    "external_url": "status_checks/services.py",
    "environment_scope": "ci/variables/variables.py",
    "static_objects_external_storage_url": "accounts/instance_settings.py",
    "static_objects_external_storage_auth_token": "accounts/instance_settings.py",
    "outbound_local_requests_whitelist": "accounts/instance_settings.py",
    # Names of refs, as git has them, and of branches that are looked for.
    **dict.fromkeys(("tag_name", "branch", "source_branch", "target_branch"), "git/ref_names.py"),
    # Of pipelines and jobs: a file, so to say.
    "value": "ci/variables/variables.py",
}
#: Likewise, on single routes.
ELSEWHERE_HERE = {
    ("POST /projects/{id}/external_status_checks", "name"),
    ("PUT /projects/{id}/external_status_checks/{check_id}", "name"),
    ("POST /projects/{id}/merge_requests", "description"),
    ("PUT /projects/{id}/merge_requests/{merge_request_iid}", "description"),
    ("POST /projects/{id}/protected_branches", "name"),
    ("POST /projects/{id}/protected_tags", "name"),
    ("POST /projects/{id}/variables", "key"),
    ("POST /projects/{id}/variables", "description"),
    ("PUT /projects/{id}/variables/{key}", "description"),
    ("POST /groups/{id}/variables", "key"),
    ("POST /groups/{id}/variables", "description"),
    ("PUT /groups/{id}/variables/{key}", "description"),
    ("POST /projects/{id}/statuses/{sha}", "name"),
    ("POST /projects/{id}/statuses/{sha}", "description"),
    ("POST /projects/{id}/statuses/{sha}", "target_url"),
    ("POST /admin/ci/variables", "key"),
    ("POST /admin/ci/variables", "description"),
    ("PUT /admin/ci/variables/{key}", "description"),
}
#: Those that take several.
LISTS = {"labels", "add_labels", "remove_labels", "tag_list", "host_keys"}
WRITING = [route for route in ROUTES if route.method != "GET" and route.parameters is not None]


def bounds_in(annotation: Any) -> Iterator[AtMost | None]:
    """The bound of each text in a type: None for one without."""
    if typing.get_origin(annotation) is Annotated:
        yield next(one for one in annotation.__metadata__ if isinstance(one, AtMost))
    elif annotation is str:
        yield None
    elif not attrs.has(annotation):
        for argument in typing.get_args(annotation):
            yield from bounds_in(argument)


def texts_of(route: Route) -> dict[str, AtMost | None]:
    """The bounds of the texts that a request may bring beside its path."""
    fields = attrs.fields(typing.cast("Any", route.parameters))
    return {
        public_name(field): bound
        for field in fields
        if f"{{{public_name(field)}" not in route.path
        for bound in bounds_in(field.type)
    }


def test_every_text_that_is_kept_has_a_bound() -> None:
    unbounded = {
        (name_of(route), text)
        for route in WRITING
        for text, bound in texts_of(route).items()
        if text in KEPT and bound is None and text not in ELSEWHERE
    }
    assert unbounded == ELSEWHERE_HERE


async def test_one_character_more_is_refused_in_gitlabs_words(forge: Forge) -> None:
    deviations = Deviations()
    for route in WRITING:
        bounds = {text: bound.characters for text, bound in texts_of(route).items() if bound is not None}
        longer = {text: "x" * (most + 1) for text, most in bounds.items()}
        if bounds:
            with deviations.of(name_of(route)):
                await refuses(forge, route, longer, bounds)
    assert not deviations, deviations.report


async def test_what_an_index_keeps_as_it_is_sent_is_counted_in_bytes(forge: Forge) -> None:
    deviations = Deviations()
    for route in WRITING:
        texts = texts_of(route).items()
        bounds = {text: bound.characters for text, bound in texts if isinstance(bound, AtMostBytes)}
        longer = {text: "é" * (most // 2 + 1) for text, most in bounds.items()}
        if bounds:
            with deviations.of(name_of(route)):
                await refuses(forge, route, longer, bounds)
    assert not deviations, deviations.report


async def refuses(forge: Forge, route: Route, longer: dict[str, str], bounds: dict[str, int]) -> None:
    sent = {text: [value] if text in LISTS else value for text, value in longer.items()}
    headers = {"Content-Type": "application/json"}
    body = io.BytesIO(json.dumps(sent).encode())
    answer = await forge.root.request(route.method, path_of(route, {}), data=body, headers=headers)
    expected = {f"{text} is too long (maximum is {most} characters)" for text, most in bounds.items()}
    assert answer.status == 400, answer
    assert expected <= set(answer.body["error"].split(", ")), answer.body
