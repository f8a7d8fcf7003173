"""`/projects/:id/repository/branches`: whole bodies, and what is refused in GitLab's words."""

from typing import Any

from tests.support.deviations import Deviations
from tests.support.forge import Forge, Person


async def test_a_branch_is_made_shown_listed_and_removed(
    forge: Forge, alice: Person, project: dict[str, Any]
) -> None:
    url = f"{project['url']}/branches"
    made = await alice.api.post(url, {"branch": "topic/one", "ref": "side"})
    commit = (await alice.api.get(f"{project['url']}/commits/side")).body
    shown = {
        "name": "topic/one",
        "commit": {key: commit[key] for key in made.body["commit"]},
        "merged": False,
        "protected": False,
        "developers_can_push": False,
        "developers_can_merge": False,
        "can_push": True,
        "default": False,
        "web_url": f"{forge.base}/{project['path_with_namespace']}/-/tree/topic/one",
    }
    assert (made.status, made.body) == (201, shown)
    assert (await alice.api.get(f"{url}/topic%2Fone")).body == shown
    listed = (await alice.api.get(url)).body
    assert [branch["name"] for branch in listed] == ["main", "side", "topic/one"]
    assert listed[2] | {"commit": shown["commit"]} == shown
    main = (await alice.api.get(f"{url}/main")).body
    assert (main["default"], main["protected"], main["developers_can_push"]) == (True, True, False)
    assert (await alice.api.delete(f"{url}/topic%2Fone")).status == 204
    assert (await alice.api.get(f"{url}/topic%2Fone")).status == 404


#: Method, path below the branches, body; the answer.
REFUSED: list[tuple[str, str, dict[str, str] | None, int, dict[str, str]]] = [
    ("POST", "", {"branch": "new", "ref": "none"}, 400, {"message": "Invalid reference name: none"}),
    ("POST", "", {"branch": "side", "ref": "main"}, 400, {"message": "Branch already exists"}),
    ("POST", "", {"branch": "new"}, 400, {"error": "ref is missing"}),
    ("POST", "", {"ref": "main"}, 400, {"error": "branch is missing"}),
    ("GET", "/none", None, 404, {"message": "404 Branch Not Found"}),
    ("DELETE", "/none", None, 404, {"message": "404 Branch Not Found"}),
    ("DELETE", "/main", None, 405, {"message": "Cannot remove HEAD branch"}),
    ("DELETE", "/kept", None, 405, {"message": "Protected branch cant be removed"}),
]


async def test_what_cannot_be_is_refused_in_gitlabs_words(alice: Person, project: dict[str, Any]) -> None:
    url, deviations = f"{project['url']}/branches", Deviations()
    assert (await alice.api.post(url, {"branch": "kept", "ref": "main"})).status == 201
    rules = f"/projects/{project['id']}/protected_branches"
    assert (await alice.api.post(rules, {"name": "kept"})).status == 201
    for method, path, body, status, told in REFUSED:
        with deviations.of(f"{method} {path} {body}"):
            answer = await alice.api.request(method, f"{url}{path}", json=body)
            assert (answer.status, answer.body) == (status, told)
    assert not deviations, deviations.report
