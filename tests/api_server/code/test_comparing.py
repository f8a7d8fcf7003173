"""Differences between commits, archives, and commits that are cherry-picked or reverted."""

import asyncio
import io
import tarfile
from pathlib import Path
from typing import Any

import attrs
import gitlab
import pytest

from api_server.web.routes import Role
from tests.support.forge import Answer, Forge, Person, new_name
from tests.support.git_client import Git, git_url
from tests.support.merge_requests import head_of
from tests.support.signed_commits import signed


def summary(files: list[dict[str, Any]]) -> list[tuple[str, str, str]]:
    kinds = ("new_file", "deleted_file", "renamed_file")
    return [
        (next((kind for kind in kinds if one[kind]), "changed"), one["old_path"], one["new_path"])
        for one in files
    ]


@pytest.fixture
async def changed(alice: Person, project: dict[str, Any]) -> dict[str, Any]:
    """A commit on `topic`, which is based on `side`, with one change of each kind."""
    actions = [
        {"action": "create", "file_path": "bin", "content": "AAEC", "encoding": "base64"},
        {"action": "create", "file_path": "big", "content": "x" * 600_000},
        {"action": "update", "file_path": "README.md", "content": "one\ntwo\n", "execute_filemode": True},
        {"action": "move", "file_path": "lib/a.py", "previous_path": "src/a.py"},
        {"action": "delete", "file_path": "src/deep/b.py"},
    ]
    wanted = {"branch": "topic", "start_branch": "side", "commit_message": "All kinds", "actions": actions}
    assert (await alice.api.post(f"{project['url']}/commits", wanted)).status == 201
    return project


KINDS = [
    ("changed", "README.md", "README.md"),
    ("new_file", "big", "big"),
    ("new_file", "bin", "bin"),
    ("renamed_file", "src/a.py", "lib/a.py"),
    ("deleted_file", "src/deep/b.py", "src/deep/b.py"),
]


async def test_the_diff_of_a_commit(alice: Person, changed: dict[str, Any]) -> None:
    answer = await alice.api.get(f"{changed['url']}/commits/topic/diff")
    assert (answer.status, answer.headers["X-Total"]) == (200, "5")
    assert sorted(summary(answer.body), key=lambda one: one[2]) == sorted(KINDS, key=lambda one: one[2])
    files = {one["new_path"]: one for one in answer.body}
    assert files["README.md"] == {
        "diff": "@@ -1 +1,2 @@\n one\n+two\n", "collapsed": False, "too_large": False, "new_path": "README.md",
        "old_path": "README.md", "a_mode": "100644", "b_mode": "100755", "new_file": False, "renamed_file": False,
        "deleted_file": False, "generated_file": None,
    }  # fmt: skip
    assert files["bin"]["diff"] == "Binary files /dev/null and b/bin differ\n"
    assert (files["big"]["diff"], files["big"]["too_large"]) == ("", True)
    assert (files["big"]["a_mode"], files["src/deep/b.py"]["b_mode"]) == ("0", "0")
    assert files["lib/a.py"]["diff"] == ""
    page = await alice.api.get(f"{changed['url']}/commits/topic/diff?per_page=2&page=3")
    assert (page.body, page.headers["X-Next-Page"]) == (answer.body[4:], "")
    first = (await alice.api.get(f"{changed['url']}/commits?ref_name=side")).body[-1]["id"]
    root = (await alice.api.get(f"{changed['url']}/commits/{first}/diff")).body
    assert {one[0] for one in summary(root)} == {"new_file"}
    gone = await alice.api.get(f"{changed['url']}/commits/gone/diff")
    assert (gone.status, gone.body) == (404, {"message": "404 Commit Not Found"})


async def test_branches_are_compared_from_where_they_parted(alice: Person, changed: dict[str, Any]) -> None:
    compared = (await alice.api.get(f"{changed['url']}/compare?from=main&to=topic")).body
    assert [one["title"] for one in compared["commits"]] == ["All kinds"]
    assert compared["commit"] == compared["commits"][-1]
    assert len(compared["diffs"]) == 5
    assert compared["compare_same_ref"] is False
    straight = (await alice.api.get(f"{changed['url']}/compare?from=main&to=topic&straight=true")).body
    (readme,) = [one for one in straight["diffs"] if one["new_path"] == "README.md"]
    assert "-lines" in readme["diff"]
    same = (await alice.api.get(f"{changed['url']}/compare?from=main&to=main")).body
    assert (same["commits"], same["commit"], same["diffs"], same["compare_same_ref"]) == ([], None, [], True)
    gone = await alice.api.get(f"{changed['url']}/compare?from=gone&to=main")
    assert (gone.status, gone.body) == (404, {"message": "404 Commit Not Found"})
    missing = await alice.api.get(f"{changed['url']}/compare?from=main")
    assert (missing.status, missing.body) == (400, {"error": "to is missing"})


async def test_a_merge_request_shows_what_it_brings(alice: Person, changed: dict[str, Any]) -> None:
    """This holds also after the merge, and after the source branch has been deleted."""
    wanted = {"source_branch": "topic", "target_branch": "side", "title": "All kinds"}
    base = f"/projects/{changed['id']}/merge_requests"
    made = (await alice.api.post(base, wanted)).body
    where = f"{base}/{made['iid']}"
    listed = (await alice.api.get(f"{where}/commits")).body
    assert [one["title"] for one in listed] == ["All kinds"]
    diffs = (await alice.api.get(f"{where}/diffs")).body
    assert diffs == (await alice.api.get(f"{changed['url']}/commits/topic/diff")).body
    assert (await alice.api.put(f"{where}/merge", {"should_remove_source_branch": True})).status == 200
    assert (await alice.api.get(f"{where}/commits")).body == listed
    assert (await alice.api.get(f"{where}/diffs")).body == diffs
    assert (await alice.api.get(f"{base}/99/diffs")).status == 404


async def test_an_archive_is_what_the_archive_page_serves(
    forge: Forge, alice: Person, project: dict[str, Any]
) -> None:
    sha = await head_of(alice.api, project, "side")
    answer = await alice.api.get(f"{project['url']}/archive.zip?sha=side")
    assert (answer.status, answer.headers["Content-Type"]) == (200, "application/zip")
    name = f"{project['path']}-side-{sha}"
    assert answer.headers["Content-Disposition"] == f'attachment; filename="{name}.zip"'
    page = await alice.api.get(f"{forge.base}/{project['path_with_namespace']}/-/archive/side/x.zip")
    assert page.headers["ETag"] == answer.headers["ETag"]
    known = await alice.api.get(
        f"{project['url']}/archive.zip?sha=side", headers={"If-None-Match": answer.headers["ETag"]}
    )
    assert known.status == 304

    async with forge.session.get(
        f"{forge.base}/api/v4{project['url']}/archive?sha={sha}&path=src",
        headers={"PRIVATE-TOKEN": alice.token},
    ) as packed:
        assert packed.headers["Content-Disposition"].endswith(f'{project["path"]}-{sha}-src.tar.gz"')
        with tarfile.open(fileobj=io.BytesIO(await packed.read())) as archive:
            assert f"{project['path']}-{sha}-src/src/a.py" in archive.getnames()


async def test_archives_that_cannot_be(forge: Forge, alice: Person, project: dict[str, Any]) -> None:
    for path in ("archive?sha=gone", "archive.rar", "archive?path=gone"):
        missing = await alice.api.get(f"{project['url']}/{path}")
        assert (missing.status, missing.body) == (404, {"message": "404 File Not Found"}), path
    empty = await forge.project(alice)
    assert (await alice.api.get(f"/projects/{empty['id']}/repository/archive")).status == 404


async def test_archives_are_limited_for_each_user(forge: Forge) -> None:
    with forge.changed_settings(archive_rate_limit=1):
        alice = await forge.user("alice")
        project = await forge.project(alice, initialize_with_readme=True)
        where = f"/projects/{project['id']}/repository/archive"
        assert (await alice.api.get(where)).status == 200
        refused = await alice.api.get(where)
        assert (refused.status, int(refused.headers["Retry-After"]) > 0) == (429, True)


def _words(verb: str, done: str) -> str:
    return (
        f"Sorry, we cannot {verb} this commit automatically. This commit may already have been {done}, "
        "or a more recent commit may have updated some of its content."
    )


WORDS = {"cherry_pick": _words("cherry-pick", "cherry-picked"), "revert": _words("revert", "reverted")}


@attrs.frozen
class Scene:
    """`main` with two commits, and `side`, which is based on the first one and has one more by Alice of another
    time."""

    forge: Forge
    developer: Person
    project: dict[str, Any]
    first: str
    second: str
    side: str

    @property
    def url(self) -> str:
        return f"/projects/{self.project['id']}/repository"

    async def branch(self, ref: str) -> str:
        name = new_name("picked")
        await self.developer.api.post(f"{self.url}/branches", {"branch": name, "ref": ref}, expect=201)
        return name

    async def ask(self, verb: str, sha: str, branch: str, **values: Any) -> Answer:
        return await self.developer.api.post(f"{self.url}/commits/{sha}/{verb}", {"branch": branch} | values)

    async def files(self, branch: str) -> dict[str, str]:
        """Return the branch's files with the ids of their contents."""
        tree = await self.developer.api.get(f"{self.url}/tree?ref={branch}&recursive=true")
        return {node["path"]: node["id"] for node in tree.body if node["type"] == "blob"}


@pytest.fixture(scope="module")
async def scene(forge: Forge, tmp_path_factory: pytest.TempPathFactory) -> Scene:
    owner, developer = await forge.user("owner"), await forge.user("developer")
    project = await forge.project(owner, members={Role.DEVELOPER: developer})
    git = Git(tmp_path_factory.mktemp("picking"))
    await git.init()
    first = await git.commit_files({"a.txt": "1\n2\n3\n", "b.txt": "b\n"}, "First")
    await git("checkout", "--quiet", "-b", "side")
    await git.commit_files({"a.txt": "1\n2\n3\nmore\n", "new.txt": "new\n"}, "On the side\n\nWith a body.")
    await git("commit", "--quiet", "--amend", "--no-edit", "--date=2020-01-02T03:04:05+0200")
    side = await git("rev-parse", "HEAD")
    await git("checkout", "--quiet", "main")
    second = await git.commit_files({"a.txt": "one\n2\n3\n"}, "Second")
    await git("push", "--quiet", git_url(forge, project["path_with_namespace"], owner), "main", "side")
    return Scene(forge, developer, project, first, second, side)


async def test_a_commit_is_picked_onto_a_branch(scene: Scene, tmp_path: Path) -> None:
    branch = await scene.branch("main")
    picked = await scene.ask("cherry_pick", scene.side, branch)
    assert picked.status == 201, picked
    original = (await scene.developer.api.get(f"{scene.url}/commits/{scene.side}?stats=false")).body
    kept = ("title", "author_name", "author_email", "authored_date")
    assert {key: picked.body[key] for key in kept} == {key: original[key] for key in kept}
    assert (
        picked.body["message"] == f"On the side\n\nWith a body.\n\n(cherry picked from commit {scene.side})"
    )
    assert picked.body["parent_ids"] == [scene.second]
    assert picked.body["committer_email"] == scene.developer.email
    detailed = (await scene.developer.api.get(f"{scene.url}/commits/{branch}")).body
    assert picked.body == {key: detailed[key] for key in picked.body}
    git = Git(tmp_path)
    remote = git_url(scene.forge, scene.project["path_with_namespace"], scene.developer)
    await git("clone", "--quiet", "--branch", branch, remote, "clone")
    clone = Git(tmp_path / "clone")
    assert (tmp_path / "clone" / "a.txt").read_text() == "one\n2\n3\nmore\n"
    assert await clone("fsck", "--strict") == ""


async def test_a_message_takes_the_place_of_the_commits(scene: Scene) -> None:
    branch = await scene.branch("main")
    picked = await scene.ask("cherry_pick", "side", branch, message="Another")
    assert (picked.status, picked.body["message"]) == (201, "Another")


async def test_a_commit_is_undone_also_the_first_one_and_what_undid_one(scene: Scene) -> None:
    branch, before = await scene.branch("main"), await scene.files("main")
    undone = await scene.ask("revert", scene.second, branch)
    assert undone.status == 201, undone
    assert undone.body["message"] == f'Revert "Second"\n\nThis reverts commit {scene.second}'
    assert undone.body["author_email"] == undone.body["committer_email"] == scene.developer.email
    assert await scene.files(branch) == await scene.files(scene.first)
    assert (await scene.ask("revert", scene.first, branch)).status == 201
    assert await scene.files(branch) == {}
    again = await scene.ask("revert", undone.body["id"], await scene.branch(undone.body["id"]))
    assert again.body["title"] == 'Revert "Revert "Second""'
    assert await scene.files(again.body["id"]) == before


@pytest.mark.parametrize(
    ("verb", "sha", "ref", "code"),
    [
        ("cherry_pick", "side", "side", "empty"),
        ("revert", "side", "main", "empty"),
        ("cherry_pick", "second", "conflicting", "conflict"),
        ("revert", "second", "conflicting", "conflict"),
    ],
)
async def test_what_cannot_be_done_is_told_in_gitlabs_words(
    scene: Scene, conflicting: str, verb: str, sha: str, ref: str, code: str
) -> None:
    branch = await scene.branch(conflicting if ref == "conflicting" else ref)
    head = (await scene.developer.api.get(f"{scene.url}/branches/{branch}")).body["commit"]["id"]
    commit = getattr(scene, sha)
    refused = await scene.ask(verb, commit, branch)
    expected = {"message": WORDS[verb], "error_code": code}
    assert (refused.status, refused.body) == (400, expected)
    tried = await scene.ask(verb, commit, branch, dry_run=True)
    assert (tried.status, tried.body) == (400, expected | {"dry_run": "error"})
    after = (await scene.developer.api.get(f"{scene.url}/branches/{branch}")).body["commit"]["id"]
    assert after == head


@pytest.fixture(scope="module")
async def conflicting(scene: Scene) -> str:
    """Create a branch that has changed the same line."""
    branch = await scene.branch(scene.first)
    values = {"branch": branch, "commit_message": "Else", "content": "else\n2\n3\n"}
    await scene.developer.api.put(f"{scene.url}/files/a.txt", values, expect=200)
    return branch


async def test_a_dry_run_commits_nothing(scene: Scene) -> None:
    branch = await scene.branch("main")
    for verb, sha in (("cherry_pick", scene.side), ("revert", scene.second)):
        tried = await scene.ask(verb, sha, branch, dry_run=True)
        assert (tried.status, tried.body) == (200, {"dry_run": "success"})
    head = (await scene.developer.api.get(f"{scene.url}/branches/{branch}")).body["commit"]["id"]
    assert head == scene.second


@pytest.mark.parametrize("verb", WORDS)
async def test_who_may_not_push_there_and_what_is_not_there(scene: Scene, verb: str) -> None:
    protected = await scene.ask(verb, scene.side, "main")
    words = "403 Forbidden - You are not allowed to push into this branch"
    assert (protected.status, protected.body) == (403, {"message": words})
    missing = await scene.ask(verb, "f" * 40, "side")
    assert (missing.status, missing.body) == (404, {"message": "404 Commit Not Found"})
    nowhere = await scene.ask(verb, scene.side, "nowhere")
    assert (nowhere.status, nowhere.body) == (404, {"message": "404 Branch Not Found"})
    empty = await scene.ask(verb, scene.side, "")
    assert (empty.status, empty.body) == (400, {"error": "branch is empty"})


async def test_a_branch_that_moves_meanwhile_keeps_what_has_been_pushed(scene: Scene) -> None:
    """Of two parallel requests one succeeds; the other is refused with a request to try again, or is done on top of
    it."""
    branch = await scene.branch("main")
    answers = await asyncio.gather(
        scene.ask("cherry_pick", scene.side, branch), scene.ask("revert", scene.second, branch)
    )
    done = [answer for answer in answers if answer.status == 201]
    assert done
    assert all(answer.status in (201, 400) for answer in answers)
    shown = await scene.developer.api.get(f"{scene.url}/commits?ref_name={branch}")
    assert {answer.body["id"] for answer in done} <= {commit["id"] for commit in shown.body}
    assert len(shown.body) == 2 + len(done)


async def test_refs_of_a_commit(scene: Scene) -> None:
    for tag in ("v1", "v2"):
        await scene.developer.api.post(
            f"{scene.url}/tags", {"tag_name": f"{tag}-side", "ref": "side", "message": "m" * (tag == "v2")}
        )
    url = f"{scene.url}/commits/{scene.side}/refs"
    both = await scene.developer.api.get(url)
    tags = [{"type": "tag", "name": "v1-side"}, {"type": "tag", "name": "v2-side"}]
    branches = [one for one in both.body if one["type"] == "branch"]
    assert (both.status, both.body) == (200, branches + tags)
    assert {"type": "branch", "name": "side"} in branches
    assert {"type": "branch", "name": "main"} not in branches
    assert (await scene.developer.api.get(f"{url}?type=tag")).body == tags
    assert (await scene.developer.api.get(f"{url}?type=branch")).body == branches
    page = await scene.developer.api.get(f"{url}?per_page=1&page=2&type=tag")
    assert (page.body, page.headers["X-Total"]) == (tags[1:], "2")
    wrong = await scene.developer.api.get(f"{url}?type=all_of_them")
    assert (wrong.status, wrong.body) == (400, {"error": "type does not have a valid value"})
    missing = await scene.developer.api.get(f"{scene.url}/commits/{'f' * 40}/refs")
    assert (missing.status, missing.body) == (404, {"message": "404 Commit Not Found"})


@pytest.mark.parametrize(
    ("query", "status", "message"),
    [
        ("refs[]=main&refs[]=side", 200, None),
        ("refs=main,side,v-none", 400, "Could not find ref: v-none"),
        ("refs[]=a&refs[]=b", 400, "Could not find refs: a, b"),
        ("refs[]=main", 400, "Provide at least 2 refs"),
        ("refs=" + ",".join(["main"] * 101), 400, "Provide at most 100 refs"),
        ("refs=main,main,main", 200, None),
    ],
)
async def test_merge_bases(scene: Scene, query: str, status: int, message: str | None) -> None:
    found = await scene.developer.api.get(f"{scene.url}/merge_base?{query}")
    if message is not None:
        assert (found.status, found.body) == (status, {"message": message})
        return
    expected = scene.first if "side" in query else scene.second
    commit = (await scene.developer.api.get(f"{scene.url}/commits/{expected}")).body
    assert (found.status, found.body) == (200, {key: commit[key] for key in found.body})


async def test_histories_without_anything_in_common_have_no_merge_base(scene: Scene) -> None:
    repository = scene.forge.repository_path(scene.project["id"])
    git = Git(repository)
    tree = await git("rev-parse", "main^{tree}")
    orphan = await git("commit-tree", "-m", "alone", tree)
    await git("update-ref", "refs/heads/orphan", orphan)
    found = await scene.developer.api.get(f"{scene.url}/merge_base?refs[]=main&refs[]=orphan")
    assert (found.status, found.body) == (404, {"message": "404 Merge Base Not Found"})


@pytest.mark.parametrize("kind", ["PGP", "SSH"])
async def test_a_commit_says_with_what_it_is_signed(scene: Scene, kind: str) -> None:
    sha = signed(scene.forge.repository(scene.project["id"]), scene.first, kind)
    found = await scene.developer.api.get(f"{scene.url}/commits/{sha}/signature")
    assert (found.status, found.body["signature_type"]) == (200, kind)
    assert found.body["verification_status"] == "unknown_key"


async def test_a_commit_that_nobody_has_signed_has_no_signature(scene: Scene) -> None:
    found = await scene.developer.api.get(f"{scene.url}/commits/{scene.first}/signature")
    assert (found.status, found.body) == (404, {"message": "404 Signature Not Found"})


async def test_python_gitlab_picks_reverts_and_asks(scene: Scene) -> None:
    branch = await scene.branch("main")

    def use() -> None:
        with gitlab.Gitlab(scene.forge.base, private_token=scene.developer.token) as client:
            project = client.projects.get(scene.project["id"])
            commit = project.commits.get(scene.side)
            picked = commit.cherry_pick(branch=branch)
            assert {"type": "branch", "name": branch} in project.commits.get(picked["id"]).refs()
            undone = project.commits.get(picked["id"]).revert(branch=branch)
            assert undone["title"] == 'Revert "On the side"'
            assert project.repository_merge_base(["main", "side"])["id"] == scene.first
            with pytest.raises(gitlab.GitlabCherryPickError):
                commit.cherry_pick(branch="side")

    await asyncio.to_thread(use)
