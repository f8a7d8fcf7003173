"""What counts as a body, and as a list: as GitLab's Grape (1.6) reads them."""

from typing import Any, Literal

import attrs

from api_server.web import request_data
from api_server.web.errors import ApiError
from api_server.web.params import CommaList, structure
from tests.support.forge import Forge

JSON = {"Content-Type": "application/json"}
#: A body of JSON, and what is said of it where a text named `path` is asked for.
BODIES = {
    b"": "name is missing, path is missing",
    b"   \n": "name is missing, path is missing",
    b"{}": "name is missing, path is missing",
    b"null": "name is missing, path is missing",
    b" null\n": "name is missing, path is missing",
    b"[]": "name is missing, path is missing",
    b'["path"]': "name is missing, path is missing",
    b'[{"path": "a"}]': "name is missing, path is missing",
    b"[" * 900 + b"]" * 900: "name is missing, path is missing",
    b"0": "name is missing, path is missing",
    b"1.5": "name is missing, path is missing",
    b"true": "name is missing, path is missing",
    b'"path"': "name is missing, path is missing",
    b'{"path": "a"}': "name is missing",
    b'{"path": null}': "name is missing, path is empty",
    b"nul": "the body is not valid JSON",
    b"null null": "the body is not valid JSON",
    b"{": "the body is not valid JSON",
    b"[1,": "the body is not valid JSON",
    b"{'path': 1}": "the body is not valid JSON",
    b'{"path": "a",}': "the body is not valid JSON",
    b'\xef\xbb\xbf{"path": "a"}': "the body is not valid JSON",
    b"path=a": "the body is not valid JSON",
}


async def test_a_body_that_is_no_object_sends_nothing(forge: Forge) -> None:
    said = {}
    for body in BODIES:
        answer = await forge.root.post("/groups", data=body, headers=JSON)
        assert answer.status == 400
        said[body] = answer.body["error"]
    assert said == BODIES


async def test_routes_that_need_nothing_take_null(forge: Forge) -> None:
    """As the clients for Go send it where they have no options."""
    project = await forge.project()
    for path, status in (
        (f"/projects/{project['id']}/star", 404),
        (f"/projects/{project['id']}/archive", 201),
    ):
        answer = await forge.root.post(path, data=b"null", headers=JSON)
        assert answer.status == status, answer


@attrs.frozen
class Item:
    """What a list of objects holds."""

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
#: A query or a form, and the list that it is.
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
#: A value of JSON, and the list that it is.
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
