"""Limits of all input: sizes, lengths, and the errors about them."""

import io
import json
import random
import string
import time
import typing
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Literal
from urllib.parse import quote

import attrs
import orjson
import pytest
from aiohttp.test_utils import make_mocked_request

from api_server.web import errors, params, request_data
from api_server.web.errors import ApiError
from api_server.web.params import AtMost, AtMostBytes, CommaList, public_name, structure
from api_server.web.request_data import cookie_value
from api_server.web.routes import Route
from tests.support.deviations import Deviations
from tests.support.forge import ROOT_TOKEN, Forge
from tests.support.route_table import ROUTES, name_of, path_of
from tests.support.watchdog import slowness
from tests.support.wire import Talk, request, talk

ROOT = f"PRIVATE-TOKEN: {ROOT_TOKEN}"
JSON = "application/json"
FORM = "application/x-www-form-urlencoded"
PARTS = "multipart/form-data; boundary=x"

#: Seconds of the processor that one of these requests may take, including the client's part.
LEAST_SECONDS = 0.04
SECONDS_PER_BYTE = 15e-9

RUNNERS = "/api/v4/runners"  # needs no token
INVITATIONS = "/api/v4/projects/999999999/invitations"
COMMITS = "/api/v4/projects/999999999/repository/commits"
TOO_MANY_ITEMS = f"is too long (maximum is {params.MAX_ITEMS} items)"
TOO_MANY_FIELDS = f"more than {request_data.MAX_FIELDS} parameters"


def parts(number: int, head: bytes = b"", value: bytes = b"") -> bytes:
    """Return a form of several parts, `a0` and so on."""
    part = b'--x\r\nContent-Disposition: form-data; name="a%d"\r\n%b\r\n%b\r\n'
    return b"".join(part % (count, head, value) for count in range(number)) + b"--x--\r\n"


def objects(key: str, number: int, **others: str) -> bytes:
    return orjson.dumps({**others, key: [{}] * number})


def nested(depth: int) -> bytes:
    return b'{"a": ' + b"[" * depth + b"]" * depth + b"}"


#: A request, and the answer; `None` if it is not about parameters.
BODIES: dict[str, tuple[str, str, str, bytes, int, str | None]] = {
    "objects instead of texts": (
        "POST", RUNNERS, JSON, objects("tag_list", 900, token="x"), 400, "tag_list is invalid"),
    "too many items": ("POST", RUNNERS, JSON, objects("tag_list", 2_000, token="x"), 400, f"tag_list {TOO_MANY_ITEMS}"),
    "empty actions": (
        "POST", COMMITS, JSON, objects("actions", 1_000, branch="a", commit_message="a"), 400,
        "actions[0][action] is missing, actions[0][file_path] is missing"),
    "too many actions": (
        "POST", COMMITS, JSON, objects("actions", 1_001, branch="a", commit_message="a"), 400,
        f"actions {TOO_MANY_ITEMS}"),
    "too many in a text with commas": (
        "POST", INVITATIONS, FORM, b"access_level=30&user_id=" + b"x," * 4_000_000, 400, f"user_id {TOO_MANY_ITEMS}"),
    "nothing but commas": (
        "POST", RUNNERS, FORM, b"token=x&tag_list=" + b"," * 1_000_000, 400,
        f"tag_list {TOO_MANY_ITEMS}"),
    "too many elements": ("POST", RUNNERS, JSON, objects("b", 300_000), 400, "Too many total parameters"),
    "too many members": (
        "POST", RUNNERS, JSON, orjson.dumps(dict.fromkeys(map(str, range(60_000)))), 400, "Too many total parameters"),
    "too many texts": ("POST", RUNNERS, JSON, orjson.dumps({"a": [""] * 300_000}), 400, "Too many total parameters"),
    "commas in a text": (
        "POST", INVITATIONS, JSON, orjson.dumps({"access_level": 30, "email": "a", "b": ',[{"\\' * 1_200_000}),
        404, None),
    "brackets that stay open": ("POST", RUNNERS, JSON, b"[" * 1_000_000, 400, "Too many total parameters"),
    "deep objects": ("POST", RUNNERS, JSON, nested(request_data.MAX_DEPTH), 400, "Parameters nested too deeply"),
    "deeper ones": ("POST", RUNNERS, JSON, nested(5_000), 400, "the body is not valid JSON"),
    "a deep body of a list": ("GET", "/api/v4/projects", JSON, nested(1_000), 400, "Parameters nested too deeply"),
    "a long body of a list": (
        "GET", "/api/v4/projects", JSON, orjson.dumps({"a": "é" * 4_000_000}), 400,
        "the parameters are too long to be paged through"),
    "a long name of a list": (
        "GET", "/api/v4/projects", JSON, orjson.dumps({"a" * 4_000_000: {str(n): {} for n in range(3_000)}}), 400,
        "the parameters are too long to be paged through"),
    "escapes": ("POST", RUNNERS, FORM, b"a=" + b"%41" * 340_000, 400, "token is missing"),
    "escapes of a known caller": (
        "POST", INVITATIONS, FORM, b"a=" + b"%41" * 3_400_000, 400, "access_level is missing"),
    "escapes that are no text": (
        "POST", RUNNERS, FORM, b"a=" + b"%ff" * 340_000, 400,
        "parameters are not valid UTF-8"),
    "a name of many keys": ("POST", RUNNERS, FORM, b"a" + b"[b]" * 340_000 + b"=1", 400, "a is nested too deeply"),
    "many fields of many keys": (
        "POST", RUNNERS, FORM, b"&".join(b"a%d" % n + b"[b]" * 30 + b"=1" for n in range(999)),
        400, "token is missing"),
    "too many fields": ("POST", RUNNERS, FORM, b"&" * 1_000_000, 400, TOO_MANY_FIELDS),
    "a type of many parameters": ("POST", RUNNERS, JSON + ';a="' * 1_900, b"{}", 400, "token is missing"),
    "many parts": ("POST", RUNNERS, PARTS, parts(1_000), 400, "token is missing"),
    "too many parts": ("POST", RUNNERS, PARTS, parts(10_000), 400, TOO_MANY_FIELDS),
    "lines before the parts": ("POST", RUNNERS, PARTS, b"\n" * 1_000_000, 400, "the form cannot be read"),
    "parts in a codec of their own": (
        "POST", RUNNERS, PARTS, parts(1, b"Content-Type: text/plain; charset=punycode\r\n", b"a-" + b"b" * 200_000),
        400, "token is missing"),
    "parts with long heads": (
        "POST", RUNNERS, PARTS, parts(200, b"X: " + b'a="' * 1_500 + b"\r\n"), 400, "the form cannot be read"),
    "a long user name to act as": (
        "POST", "/api/v4/groups", JSON, orjson.dumps({"sudo": "a" * 5_000_000}), 404, None),
    "a long number": (
        "POST", "/api/v4/groups", JSON, orjson.dumps({"name": "a", "path": "a", "parent_id": "9" * 5_000_000}), 400,
        "parent_id is invalid"),
    "a long address": (
        "POST", "/api/v4/users/1/emails", JSON, orjson.dumps({"email": "a." * 2_000_000}), 400,
        "email is too long (maximum is 255 characters)"),
}  # fmt: skip


def path(begins: str, segment: str, most: int = 7_900) -> str:
    return begins + segment * ((most - len(begins)) // len(segment))


def lines(name: str, value: str, number: int = 90) -> tuple[str, ...]:
    return (f"{name}: {value * (8_000 // len(value))}",) * number


#: Paths, queries and header fields of the maximum length, and the status of the answer.
HEADS: dict[str, tuple[str, tuple[str, ...], int]] = {
    "a deep path": (path("/", "a/"), (), 404),
    "a deep path of the API": (path("/api/v4/", "a/"), (ROOT,), 404),
    "a deep path of a project": (path("/api/v4/projects/1/", "a/"), (ROOT,), 404),
    "encoded slashes": (path("/api/v4/projects/", "a%2F"), (ROOT,), 404),
    "a deep path of pages": (path("/a/b/-/tree/", "a/"), (), 303),
    "many beginnings of pages": (path("/", "a/-/"), (), 404),
    "a deep path of a file": (path("/a/b/-/raw/", "a/"), (), 404),
    "a deep path of a repository": (path("/", "a/") + "a.git/info/refs", (), 403),
    "a deep path of a group": (path("/groups/", "a/"), (), 404),
    "steps up": (path("/", "%2e%2e/"), (), 404),
    "many parameters": (path("/api/v4/projects?", "a&"), (ROOT,), 400),
    "many parameters of a list": ("/api/v4/projects?" + "&".join(f"a{n}=1" for n in range(900)), (ROOT,), 200),
    "many parameters of a page": (path("/-/sign_in?", "a=1&"), (), 400),
    "escapes in a query": (path("/-/sign_in?return_to=", quote("ü")), (), 200),
    "many cookies": ("/-/sign_in", lines("Cookie", "a=1;"), 200),
    "cookies in quotes": ("/-/sign_in", lines("Cookie", 'a="'), 200),
    "many entity tags": ("/api/v4/version", (ROOT, *lines("If-None-Match", '"a",')), 200),
    "many ranges": ("/api/v4/version", (ROOT, *lines("Range", "bytes=0-0,")), 200),
    "many users to act as": ("/api/v4/version", (ROOT, *lines("Sudo", "a")), 404),
    "blanks before a token": ("/api/v4/version", ("Authorization: Bearer " + " " * 8_000 + "a",), 401),
    "many addresses on the way": ("/-/sign_in", lines("X-Forwarded-For", "127.0.0.1,"), 200),
    "a long request id": ("/-/sign_in", lines("X-Request-Id", "a", 1), 200),
}  # fmt: skip


@contextmanager
def cheap(sent: bytes) -> Iterator[Callable[[], bool]]:
    """Yield a function that is called after each attempt and returns whether to try again, because the attempt took
    more of the processor than this many bytes may. The second attempt counts. The watchdog of all tests finds longer
    steps of the loop."""
    limit = LEAST_SECONDS + len(sent) * SECONDS_PER_BYTE
    attempts = []
    began = time.process_time()

    def was_dear() -> bool:
        nonlocal began
        attempts.append(time.process_time() - began)
        began = time.process_time()
        return attempts[-1] > limit and len(attempts) < 2

    yield was_dear
    assert attempts[-1] < limit * slowness(), f"{attempts[-1]:.3f} s of the processor"


async def status_of(client: Talk, sent: bytes) -> int:
    await client.send(sent)
    return int((await client.head()).split()[1])


@pytest.mark.parametrize("name", BODIES)
async def test_reading_a_body_costs_little(forge: Forge, name: str) -> None:
    method, path, kind, body, status, error = BODIES[name]
    fields = () if path == RUNNERS else (ROOT,)
    sent = request(method, path, f"Content-Type: {kind}", f"Content-Length: {len(body)}", *fields) + body
    with cheap(sent) as was_dear:
        while True:
            async with talk(forge.settings.port) as client:
                await client.send(sent)
                answered, told = await client.answer()
            if not was_dear():
                break
    assert (answered, told) == (status, {"error": error} if error else told)
    assert len(orjson.dumps(told)) < 2 * errors.MAX_TEXT


@pytest.mark.parametrize("name", HEADS)
async def test_reading_a_head_costs_little(forge: Forge, name: str) -> None:
    path, fields, status = HEADS[name]
    sent = request("GET", path, *fields)
    with cheap(sent) as was_dear:
        while True:
            async with talk(forge.settings.port) as client:
                answered = await status_of(client, sent)
            if not was_dear():
                break
    assert answered == status


@pytest.mark.parametrize("body", [parts(900), b"&".join(b"a%d=1" % n for n in range(900))])
async def test_forms_of_pages_are_small_and_have_one_kind(forge: Forge, body: bytes) -> None:
    """They are read before their token is checked."""
    kind = PARTS if body.startswith(b"--") else FORM
    sent = request("POST", "/-/sign_out", f"Content-Type: {kind}", f"Content-Length: {len(body)}") + body
    with cheap(b"") as was_dear:
        async with talk(forge.settings.port) as client:
            assert await status_of(client, sent) == 403
        assert not was_dear()


async def test_a_form_of_several_parts_says_what_others_say(forge: Forge) -> None:
    """The form is as clients send it: names in quotes or without, escaped, with a type. A file counts as sent, and is
    not a text."""
    head = b"\r\n--x \r\ncontent-disposition: form-data; "
    sent = b"".join(
        (
            b"nobody reads this" + head + b'name="na\\me"\r\n\r\n\xc3\xa9\r\n--a\r\n',
            head[:2] + head[2:] + b"name=path; filename=\r\nContent-Type: text/plain; charset=utf-8\r\n\r\n",
            head + b'name="visibility"; filename="a;b.txt"\r\n\r\nprivate',
            b"\r\n--x--\r\nnor this",
        )
    )
    answer = await forge.root.post(
        "/groups", data=sent, headers={"Content-Type": 'multipart/form-data; boundary="x"'}
    )
    assert answer.body == {"error": "path is empty, visibility does not have a valid value"}


@pytest.mark.parametrize(
    "body",
    [
        b"--x\r\nContent-Disposition: form-data\r\n\r\na\r\n--x--",
        b'--x\r\nContent-Disposition: form-data; name="a"\r\n\r\na\r\n--x',
        b'--x\r\nContent-Disposition: form-data; name="a"\r\n\r\n\xff\r\n--x--',
        b'--x\r\nContent-Disposition: form-data; name="a"\r\nContent-Transfer-Encoding: base64\r\n\r\nYQ==\r\n--x--',
        b'--xy\r\nContent-Disposition: form-data; name="a"\r\n\r\na\r\n--x--',
    ],
)
async def test_a_form_of_several_parts_that_says_nothing_is_400(forge: Forge, body: bytes) -> None:
    answer = await forge.root.post("/groups", data=body, headers={"Content-Type": PARTS})
    assert (answer.status, answer.body) == (400, {"error": "the form cannot be read"})


async def test_what_cannot_be_decoded_is_told_from_its_replacement(forge: Forge) -> None:
    """U+FFFD may be sent, as such and as an escape."""
    for sent, error in (
        (b"%EF%BF%BD\xef\xbf\xbd%ef%bf%bd", "path is missing"),
        (b"%EF%BF", None),
        (b"%EF%BF%BD%FF", None),
    ):
        answer = await forge.root.post("/groups", data=b"name=" + sent, headers={"Content-Type": FORM})
        assert answer.body == {"error": error or "parameters are not valid UTF-8"}


async def test_attempts_are_counted_before_a_form_is_read(new_forge: Any) -> None:
    """A caller who sends foreign forms has to wait too, and nothing of them is read."""
    head = request("POST", "/-/sign_in", f"Content-Type: {PARTS}", "Content-Length: 60000")
    async with new_forge() as forge:
        for _ in range(10):
            assert (await forge.anonymous.post(f"{forge.base}/-/sign_in")).status == 403
        async with talk(forge.settings.port) as client:
            assert await status_of(client, head) == 429


async def test_groups_are_not_nested_more_deeply_than_in_gitlab(forge: Forge) -> None:
    group = await forge.group()
    for _ in range(20):
        group = await forge.group(parent_id=group["id"])
    answer = await forge.root.post("/groups", {"name": "a", "path": "a", "parent_id": group["id"]})
    assert answer.body == {"message": 'Failed to save group {:parent=>["has too deep level of nesting"]}'}
    project = await forge.project(namespace_id=group["id"])
    assert (await forge.anonymous.get(f"{forge.base}/{project['path_with_namespace']}")).status == 303


async def test_a_full_path_is_as_long_as_an_index_takes(forge: Forge) -> None:
    group, letters = await forge.group(), random.Random(1)
    for _ in range(12):
        name = "".join(letters.choices(string.ascii_lowercase, k=250))
        answer = await forge.root.post("/groups", {"name": "a", "path": name, "parent_id": group["id"]})
        if answer.status != 201:
            break
        group = answer.body
    assert (answer.status, answer.body) == (
        400,
        {"message": "400 Bad request - A path or a name is too long"},
    )


#: Names of parameters that are stored in a row: names, short texts, addresses, texts.
KEPT = {
    "name", "title", "path", "username", "email", "description", "url", "external_url", "target_url", "website_url",
    "bio", "location", "organization", "public_email", "labels", "add_labels", "tag_list", "maintenance_note", "key",
    "default_branch", "ci_config_path", "author_name", "author_email", "commit_message", "merge_commit_message",
    "message", "mirror_branch_regex", "host_keys", "system_id", "invite_source", "environment_scope", "shared_secret",
    "value", "tag_name", "branch", "source_branch", "target_branch", "password",
    "static_objects_external_storage_url", "static_objects_external_storage_auth_token",
    "outbound_local_requests_whitelist", "body",
}  # fmt: skip
#: Those with a limit of another rule, which has its own message.
ELSEWHERE = {
    "title": "merge_requests/changes.py",
    "body": "merge_requests/notes.py",
    "shared_secret": "status_checks/checks.py",
    "external_url": "status_checks/checks.py",
    "environment_scope": "ci/variables/variables.py",
    "static_objects_external_storage_url": "accounts/instance_settings.py",
    "static_objects_external_storage_auth_token": "accounts/instance_settings.py",
    "outbound_local_requests_whitelist": "accounts/instance_settings.py",
    # Names of refs, which follow git's rules, and searches for branches.
    **dict.fromkeys(("tag_name", "branch", "source_branch", "target_branch"), "git/ref_names.py"),
    # Variables of pipelines and jobs may be as large as files.
    "value": "ci/variables/variables.py",
}
#: Others on single routes.
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
#: Parameters with several values.
LISTS = {"labels", "add_labels", "remove_labels", "tag_list", "host_keys"}
WRITING = [route for route in ROUTES if route.method != "GET" and route.parameters is not None]


def bounds_in(annotation: Any) -> Iterator[AtMost | None]:
    """Return the limit of each text in a type: None for one without."""
    if typing.get_origin(annotation) is Annotated:
        yield next(one for one in annotation.__metadata__ if isinstance(one, AtMost))
    elif annotation is str:
        yield None
    elif not attrs.has(annotation):
        for argument in typing.get_args(annotation):
            yield from bounds_in(argument)


def texts_of(route: Route) -> dict[str, AtMost | None]:
    """Return the limits of the texts in a request, except those of its path."""
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


JSON_HEADERS = {"Content-Type": "application/json"}
#: A JSON body, and the resulting error of a route that requires a text named `path`.
SENT_BODIES = {
    b"": "name is missing, path is missing", b"   \n": "name is missing, path is missing",
    b"{}": "name is missing, path is missing", b"null": "name is missing, path is missing",
    b" null\n": "name is missing, path is missing", b"[]": "name is missing, path is missing",
    b'["path"]': "name is missing, path is missing", b'[{"path": "a"}]': "name is missing, path is missing",
    b"[" * 900 + b"]" * 900: "name is missing, path is missing", b"0": "name is missing, path is missing",
    b"1.5": "name is missing, path is missing", b"true": "name is missing, path is missing",
    b'"path"': "name is missing, path is missing", b'{"path": "a"}': "name is missing",
    b'{"path": null}': "name is missing, path is empty", b"nul": "the body is not valid JSON",
    b"null null": "the body is not valid JSON", b"{": "the body is not valid JSON",
    b"[1,": "the body is not valid JSON", b"{'path': 1}": "the body is not valid JSON",
    b'{"path": "a",}': "the body is not valid JSON", b'\xef\xbb\xbf{"path": "a"}': "the body is not valid JSON",
    b"path=a": "the body is not valid JSON",
}  # fmt: skip


async def test_a_body_that_is_no_object_sends_nothing(forge: Forge) -> None:
    said = {}
    for body in SENT_BODIES:
        answer = await forge.root.post("/groups", data=body, headers=JSON_HEADERS)
        assert answer.status == 400
        said[body] = answer.body["error"]
    assert said == SENT_BODIES


async def test_routes_that_need_nothing_take_null(forge: Forge) -> None:
    """Go clients send null if they have no options."""
    project = await forge.project()
    for path, status in (
        (f"/projects/{project['id']}/star", 404),
        (f"/projects/{project['id']}/archive", 201),
    ):
        answer = await forge.root.post(path, data=b"null", headers=JSON_HEADERS)
        assert answer.status == status, answer


@attrs.frozen
class Item:
    """An item of a list of objects."""

    key: str


@attrs.frozen
class Lists:
    """A list of each kind that routes have."""

    ids: CommaList[int] | None = None
    names: CommaList[str] | None = None
    kinds: CommaList[Literal["a", "b"]] | None = None
    numbers: list[int] | None = None
    objects: list[Item] | None = None


INVALID = "is invalid"
#: A query or a form, and the resulting list.
FORMS: dict[str, Any] = {
    "ids=": [],
    "ids[]=": [],
    "ids[]=&ids[]=": [],
    "ids=,": [],
    "ids=1": [1],
    "ids=1,": [1],
    "ids=1,2": [1, 2],
    "ids=1, 2": [1, 2],
    "ids[]=1&ids[]=": [1],
    "ids[]=1,2&ids[]=3": [1, 2, 3],
    "ids[]=x": INVALID,
    "ids=1.5": INVALID,
    "ids[]=1,x": INVALID,
    "ids[0]=1": INVALID,
    "ids[][a]=1": INVALID,
    "names=": [],
    "names[]=": [],
    "names=a,": ["a"],
    "names= a , b": ["a", "b"],
    "names[]=a,b&names[]=c": ["a", "b", "c"],
    "names[]=a&names[]=": ["a"],
    "kinds=": [],
    "kinds[]=": [],
    "kinds=a,b": ["a", "b"],
    "kinds=c": "does not have a valid value",
    "numbers=": [],
    "numbers[]=": [],
    "numbers[]=1&numbers[]=": [1],
    "numbers=1": INVALID,
    "numbers[]=1,2": INVALID,
    "objects=": [],
    "objects[]=": [],
    "objects[][key]=a&objects[][key]=b": [Item("a"), Item("b")],
    "objects[0][key]=a": [Item("a")],
    "objects=a": INVALID,
    "objects[]=a": INVALID,
}
#: A JSON value, and the resulting list.
VALUES: list[tuple[str, Any, Any]] = [
    ("ids", [], []),
    ("ids", None, None),
    ("ids", "", []),
    ("ids", [""], []),
    ("ids", [None], []),
    ("ids", [1, None], [1]),
    ("ids", 5, [5]),
    ("ids", ["1,2"], [1, 2]),
    ("ids", [True], INVALID),
    ("ids", [[1]], INVALID),
    ("ids", {}, INVALID),
    ("names", [None], []),
    ("names", [1], ["1"]),
    ("numbers", [], []),
    ("numbers", [""], []),
    ("numbers", [None], INVALID),
    ("objects", [], []),
    ("objects", "", []),
    ("objects", [None], INVALID),
    ("objects", ["a"], INVALID),
]


def _read(sent: dict[str, Any]) -> Any:
    (name,) = sent
    try:
        return getattr(structure(sent, Lists), name)
    except ApiError as refused:
        return refused.body["error"].partition(" ")[2]


def test_lists_of_forms_and_queries() -> None:
    assert {form: _read(request_data.fields_of(form)) for form in FORMS} == FORMS


def test_lists_of_json() -> None:
    assert [(name, sent, _read({name: sent})) for name, sent, _ in VALUES] == VALUES


async def test_an_empty_list_in_a_form_ends_what_was_listed(forge: Forge) -> None:
    project = await forge.project(initialize_with_readme=True)
    branches = (await forge.root.get(f"/projects/{project['id']}/protected_branches")).body
    path = f"/projects/{project['id']}/external_status_checks"
    new = {"name": "a", "external_url": "https://example.org", "protected_branch_ids": [branches[0]["id"]]}
    made = (await forge.root.post(path, new)).body
    assert [branch["id"] for branch in made["protected_branches"]] == [branches[0]["id"]]
    for form in ("protected_branch_ids[]=", "protected_branch_ids="):
        await forge.root.put(f"{path}/{made['id']}", new)
        headers = {"Content-Type": "application/x-www-form-urlencoded"}
        changed = await forge.root.put(f"{path}/{made['id']}", data=form, headers=headers)
        assert (changed.status, changed.body["protected_branches"]) == (200, []), form
    members = await forge.root.get(f"/projects/{project['id']}/members/all?user_ids[]=")
    assert len(members.body) == 1, "who asks for nobody by name is shown everybody"


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("a=1", "1"),
        ("b=2; a=1; c=3", "1"),
        ("b=2;a=1", "1"),
        ('b="x; y"; a="1=.2"', "1=.2"),
        ("aa=2; b-a=3; b=a=4", ""),
        ("a=; b=2", ""),
        ("a", ""),
        ("", ""),
    ],
)
def test_a_cookie_is_found_among_others(line: str, value: str) -> None:
    assert cookie_value(make_mocked_request("GET", "/", headers={"Cookie": line}), "a") == value
