"""A branch of a repository that has none yet begins with a README, as at GitLab."""

from tests.support.forge import Forge


async def test_a_branch_of_an_empty_repository_begins_with_a_readme(forge: Forge) -> None:
    alice = await forge.user("alice")
    project = await forge.project(alice)
    url = f"/projects/{project['id']}/repository"
    other = await alice.api.post(f"{url}/branches", {"branch": "topic", "ref": "develop"})
    assert (other.status, other.body) == (400, {"message": "Invalid reference name: develop"})
    made = await alice.api.post(f"{url}/branches", {"branch": "topic", "ref": "main"})
    assert (made.status, made.body["name"]) == (201, "topic"), made
    assert made.body["commit"]["message"] == "Add README.md"
    branches = (await alice.api.get(f"{url}/branches")).body
    shown = [(one["name"], one["default"], one["protected"]) for one in branches]
    assert shown == [("main", True, True), ("topic", False, False)]
    assert {one["commit"]["id"] for one in branches} == {made.body["commit"]["id"]}
    readme = (await alice.api.get(f"{url}/files/README.md?ref=topic")).body
    assert (readme["size"], readme["content"]) == (0, "")
    project = (await alice.api.get(f"/projects/{project['id']}")).body
    assert (project["empty_repo"], project["default_branch"]) == (False, "main")


async def test_the_default_branch_of_an_empty_repository_is_made_of_itself(forge: Forge) -> None:
    project = await forge.project()
    url = f"/projects/{project['id']}/repository/branches"
    made = await forge.root.post(url, {"branch": "main", "ref": "main"})
    assert (made.status, made.body["name"], made.body["default"]) == (201, "main", True)
    assert [one["name"] for one in (await forge.root.get(url)).body] == ["main"]
