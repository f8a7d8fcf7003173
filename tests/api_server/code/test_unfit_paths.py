"""Paths that git refuses in a push are refused by the API too: a branch that has one could not be pushed to again."""

from typing import Any
from urllib.parse import quote

import pytest
from pygit2.enums import FileMode, ObjectType

from api_server.git.repositories import Repository
from tests.support.forge import Answer, Forge, Person

UNFIT = [
    ".git\u200c/config",
    "git~1/config",
    ".GIT/x",
    ".git::$INDEX_ALLOCATION",
    "a/.git ./b",
    ".gitmodules/x",
    "a\\b",
]
SUBMODULES = '[submodule "a"]\n\tpath = a\n\turl = -u./payload\n'


@pytest.fixture
def repository(forge: Forge, project: dict[str, Any]) -> Repository:
    return forge.repository(project["id"])


async def commit(
    who: Person, project: dict[str, Any], *actions: dict[str, Any], branch: str = "side"
) -> Answer:
    body = {"branch": branch, "commit_message": "Change", "actions": list(actions)}
    return await who.api.post(f"{project['url']}/commits", body)


def assert_refused(answer: Answer, path: str) -> None:
    words = f"{path!r} is not a valid path for a file"
    assert (answer.status, answer.body.get("message", "")[: len(words)]) == (400, words)


@pytest.mark.parametrize("path", UNFIT)
async def test_no_action_puts_a_file_where_git_would_refuse_it(
    project: dict[str, Any], alice: Person, repository: Repository, path: str
) -> None:
    side = repository.lookup_reference("refs/heads/side").target
    created = {"action": "create", "file_path": path, "content": "x"}
    moved = {"action": "move", "file_path": path, "previous_path": "README.md"}
    for action in (created, moved):
        assert_refused(await commit(alice, project, action), path)
    url = f"{project['url']}/files/{quote(path, safe='')}"
    body = {"branch": "side", "content": "x", "commit_message": "Change"}
    assert_refused(await alice.api.post(url, body), path)
    empty = await alice.api.post("/projects", {"name": f"Empty {hash(path)}"})
    first = {"url": f"/projects/{empty.body['id']}/repository"}
    assert_refused(await commit(alice, first, created, branch="main"), path)
    assert repository.lookup_reference("refs/heads/side").target == side


async def test_a_link_cannot_become_gitmodules(
    project: dict[str, Any], alice: Person, repository: Repository
) -> None:
    (project["git"].folder / "link").symlink_to("README.md")
    await project["git"].commit_files({})
    await project["git"]("push", project["remote"], "HEAD:refs/heads/links")
    for path in (".gitmodules", "src/GITMOD~1"):
        move = {"action": "move", "file_path": path, "previous_path": "link"}
        assert_refused(await commit(alice, project, move, branch="links"), path)


async def test_what_git_reads_for_itself_has_to_pass_its_check(
    project: dict[str, Any], alice: Person
) -> None:
    refusal = {
        "message": "git refuses this .gitmodules: gitmodulesUrl: disallowed submodule url: -u./payload"
    }
    body = {"branch": "side", "content": SUBMODULES, "commit_message": "Change"}
    created = {"action": "create", "file_path": ".gitmodules", "content": SUBMODULES}
    answers = [
        await alice.api.post(f"{project['url']}/files/%2Egitmodules", body),
        await commit(alice, project, created),
    ]
    assert [(answer.status, answer.body) for answer in answers] == [(400, refusal)] * 2


async def test_what_git_reads_for_itself_is_not_large(project: dict[str, Any], alice: Person) -> None:
    """It would be read whole, also where a file that is there already is only moved."""
    await project["git"].commit_files({"large": b"#" * (2**20 + 1)})
    await project["git"]("push", project["remote"], "HEAD:refs/heads/large")
    move = {"action": "move", "file_path": ".gitattributes", "previous_path": "large"}
    told = await commit(alice, project, move, branch="large")
    assert (told.status, told.body) == (400, {"message": ".gitattributes may have 1048576 bytes at most"})


def _with_an_unfit_path_of_old(repository: Repository) -> None:
    """The branch `old` with a file that was committed before anybody looked at its path."""
    head = repository.lookup_reference("refs/heads/main").peel()
    inner = repository.write(ObjectType.TREE, b"100644 config\0" + repository.create_blob(b"x").raw)
    entry = b"%o %s\0" % (FileMode.TREE, ".git\u200c".encode()) + inner.raw
    tree = repository.write(ObjectType.TREE, entry + head.tree.read_raw())
    commit = repository.create_commit(None, head.author, head.author, "Old", tree, [head.id])
    repository.references.create("refs/heads/old", commit)


@pytest.mark.parametrize(
    "repair",
    [
        {"action": "delete", "file_path": ".git\u200c/config"},
        {"action": "move", "file_path": "config", "previous_path": ".git\u200c/config"},
    ],
    ids=lambda action: action["action"],
)
async def test_a_branch_with_an_unfit_path_of_old_is_repaired_through_the_api(
    project: dict[str, Any], alice: Person, repository: Repository, repair: dict[str, str]
) -> None:
    _with_an_unfit_path_of_old(repository)
    git, path = project["git"], ".git\u200c/config"
    for action in (
        {"action": "update", "file_path": path, "content": "y"},
        {"action": "chmod", "file_path": path, "execute_filemode": True},
    ):
        assert_refused(await commit(alice, project, action, branch="old"), path)
    assert (await commit(alice, project, repair, branch="old")).status == 201
    await git("fetch", "--quiet", project["remote"], "old")
    await git("reset", "--quiet", "--hard", "FETCH_HEAD")
    await git.commit_files({"pushed.txt": "again\n"})
    await git("push", "--quiet", project["remote"], "HEAD:refs/heads/old")
