"""Branches and tags that are named like something else: no way in, no way to stand for what they are named after."""

import base64
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import pytest

from api_server.git.repositories import Repository
from api_server.web.routes import Role
from tests.support.forge import Forge, Person

MISLEADING = ["HEAD", "HEAD/a", "refs/heads/main", "refs/tags/v1", "-x", "AB" * 20, f"{'0' * 40}/a", "@"]
ACTION = {"action": "create", "file_path": "new.txt", "content": "new"}
INVALID = {"message": "Branch name is invalid"}


@pytest.fixture
def repository(forge: Forge, project: dict[str, Any]) -> Repository:
    return forge.repository(project["id"])


async def test_no_way_in_leads_to_a_misleading_name(
    project: dict[str, Any], alice: Person, repository: Repository
) -> None:
    before = repository.raw_listall_references()
    for name in MISLEADING:
        commit = {"branch": name, "commit_message": "New", "start_branch": "main"}
        attempts = [
            ("branches", {"branch": name, "ref": "main"}, INVALID),
            ("tags", {"tag_name": name, "ref": "main"}, {"message": "Tag name invalid"}),
            ("tags", {"tag_name": name, "ref": "main", "message": "m"}, {"message": "Tag name invalid"}),
            ("commits", commit | {"actions": [ACTION]}, INVALID),
            ("files/new.txt", commit | {"content": "new"}, INVALID),
        ]
        for path, body, refusal in attempts:
            answer = await alice.api.post(f"{project['url']}/{path}", body)
            assert (answer.status, answer.body) == (400, refusal), (path, name)
    assert repository.raw_listall_references() == before


@pytest.mark.parametrize("name", MISLEADING)
async def test_no_project_begins_with_a_misleading_default_branch(alice: Person, name: str) -> None:
    for values in ({}, {"initialize_with_readme": True}):
        answer = await alice.api.post("/projects", {"name": "Misled", "default_branch": name} | values)
        assert (answer.status, answer.body) == (400, {"message": {"default_branch": ["is invalid"]}})


async def test_a_misleading_branch_of_old_cannot_become_the_default_one(
    project: dict[str, Any], alice: Person, repository: Repository
) -> None:
    repository.references.create("refs/heads/HEAD", repository.lookup_reference("refs/heads/side").target)
    answer = await alice.api.put(f"/projects/{project['id']}", {"default_branch": "HEAD"})
    refusal = {"base": ["Could not change HEAD: branch 'HEAD' does not exist"]}
    assert (answer.status, answer.body) == (400, {"message": refusal})


async def test_a_branch_begins_at_a_branch_that_is_named_in_short(
    project: dict[str, Any], alice: Person
) -> None:
    """`start_branch` is a branch's name: what is another way to name a commit is not one."""
    sha = (await alice.api.get(f"{project['url']}/branches/main")).body["commit"]["id"]
    for start in ("HEAD", "refs/heads/main", sha):
        body = {"branch": "new", "start_branch": start, "commit_message": "New", "actions": [ACTION]}
        answer = await alice.api.post(f"{project['url']}/commits", body)
        assert (answer.status, answer.body) == (
            400,
            {"message": "You can only create or edit files when you are on a branch"},
        )


def _readers(project: dict[str, Any], name: str) -> list[tuple[str, Callable[[Any], Any]]]:
    """Where a revision is given, and how to tell from the answer which one was read."""
    url, ref = project["url"], quote(name, safe="")
    return [
        (f"{url}/files/README.md?ref={ref}", lambda body: base64.b64decode(body["content"])),
        (f"{url}/files/README.md/raw?ref={ref}", lambda body: str(body).encode()),
        (f"{url}/commits/{ref}", lambda body: body["id"]),
        (f"{url}/commits?ref_name={ref}", lambda body: body[0]["id"]),
        (f"{url}/tree?ref={ref}", lambda body: [node["id"] for node in body]),
        (f"{url}/compare?from={ref}&to=main", lambda body: body["compare_same_ref"]),
        (f"{url}/archive.tar?sha={ref}", lambda body: "two\nlines\n" in body),
    ]


async def test_misleading_refs_of_old_stand_for_nothing_else(
    project: dict[str, Any], alice: Person, repository: Repository
) -> None:
    main, side = (str(repository.lookup_reference(f"refs/heads/{one}").target) for one in ("main", "side"))
    names = ["HEAD", "refs/heads/main", main]
    for ref in (f"refs/{kind}/{name}" for kind in ("heads", "tags") for name in names):
        repository.references.create(ref, side)
    rights = [tell((await alice.api.get(url)).body) for url, tell in _readers(project, "main")]
    for name in names:
        for (url, tell), right in zip(_readers(project, name), rights, strict=True):
            answer = await alice.api.get(url)
            assert (answer.status, tell(answer.body)) == (200, right), url
        made = await alice.api.post(
            f"{project['url']}/branches", {"branch": f"from-{len(name)}", "ref": name}
        )
        assert (made.status, made.body["commit"]["id"]) == (201, main)
        raw = await alice.api.get(f"{alice.api.base}/{project['path_with_namespace']}/-/raw/{name}/README.md")
        assert (raw.status, raw.body) == (200, "two\nlines\n")


@pytest.mark.parametrize("kind", ["heads", "tags"])
async def test_misleading_refs_of_old_are_shown_and_can_be_deleted(
    project: dict[str, Any], alice: Person, repository: Repository, kind: str
) -> None:
    before, url = (
        repository.raw_listall_references(),
        f"{project['url']}/{'branches' if kind == 'heads' else 'tags'}",
    )
    names = ["HEAD", "refs/heads/main", "ab" * 20, "-x"]
    for name in names:
        repository.references.create(
            f"refs/{kind}/{name}", repository.lookup_reference("refs/heads/side").target
        )
    assert {found["name"] for found in (await alice.api.get(url)).body} >= set(names)
    for name in names:
        assert (await alice.api.delete(f"{url}/{quote(name, safe='')}")).status == 204
    assert repository.raw_listall_references() == before


async def test_no_tag_takes_the_name_of_the_default_branch(
    forge: Forge, project: dict[str, Any], alice: Person, repository: Repository
) -> None:
    bob = await forge.new_member(project["id"], Role.DEVELOPER, "bob")
    for person in (alice, bob):
        answer = await person.api.post(f"{project['url']}/tags", {"tag_name": "main", "ref": "side"})
        assert (answer.status, answer.body) == (
            400,
            {"message": "You cannot use default branch name to create a tag"},
        )
    printed = await project["git"]("push", project["remote"], "side:refs/tags/main", fails=True)
    assert "You cannot use default branch name to create a tag." in printed
    repository.references.create("refs/tags/main", repository.lookup_reference("refs/heads/side").target)
    await project["git"]("push", project["remote"], ":refs/tags/main")
    assert "refs/tags/main" not in repository.references
