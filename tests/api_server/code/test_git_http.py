"""Git over HTTP with the real git: who may clone and push, addresses, several refs at once, and misleading names."""

import asyncio
import base64
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import attrs
import pytest

from api_server.code.ref_queries import MovedProject
from api_server.code.refs import REF_LISTENERS
from api_server.git import receive_pack
from api_server.git.received_push import RefUpdate
from api_server.git.ref_moves import set_internal_ref
from api_server.git.ref_names import NO_COMMIT
from api_server.git.repositories import Repository
from api_server.state.database import Transaction
from api_server.web.context import SERVICES
from api_server.web.routes import Role
from tests.support.deviations import Deviations
from tests.support.forge import Forge, Person
from tests.support.git_client import Git, git_url, push_files
from tests.support.raw_push import commands, credentials, pack_of, send_push


async def test_what_is_pushed_can_be_cloned(forge: Forge, tmp_path: Path) -> None:
    alice = await forge.user("alice")
    project = await forge.project(alice)
    sha = await push_files(forge, tmp_path / "work", project, alice, {"README.md": "hello\n"})
    url = git_url(forge, project["path_with_namespace"], alice)
    await Git(tmp_path)("clone", "--quiet", url, "clone")
    assert await Git(tmp_path / "clone")("rev-parse", "HEAD") == sha
    shown = (await alice.api.get(f"/projects/{project['id']}")).body
    assert (shown["empty_repo"], shown["default_branch"]) == (False, "main")


async def test_the_default_branch_is_protected_when_it_first_appears(forge: Forge, tmp_path: Path) -> None:
    alice, bob = await forge.user("alice"), await forge.user("bob")
    project = await forge.project(alice, members={Role.DEVELOPER: bob})
    await push_files(forge, tmp_path / "alice", project, alice, {"a": "1"})
    git = Git(tmp_path / "bob")
    await Git(tmp_path)("clone", "--quiet", git_url(forge, project["path_with_namespace"], bob), "bob")
    await git.commit(b="2")
    refused = await git("push", "origin", "HEAD:main", fails=True)
    assert "remote: You are not allowed to push code to protected branches on this project." in refused
    await git("push", "--quiet", "origin", "HEAD:topic/b")
    branch = (await bob.api.get(f"/projects/{project['id']}/repository/branches/topic%2Fb")).body
    assert (branch["name"], branch["protected"], branch["can_push"]) == ("topic/b", False, True)


async def test_strangers_and_tokens_that_only_read_are_refused_in_words(forge: Forge, tmp_path: Path) -> None:
    alice, bob = await forge.user("alice"), await forge.user("bob")
    project = await forge.project(alice, members={Role.REPORTER: bob})
    path = project["path_with_namespace"]
    await push_files(forge, tmp_path / "alice", project, alice, {"a": "1"})
    git = Git(tmp_path / "alice")
    assert "could not read Username" in await git("ls-remote", git_url(forge, path), fails=True)
    stranger = await forge.user("carol")
    assert "not found" in await git("ls-remote", git_url(forge, path, stranger), fails=True)
    assert "Authentication failed" in await git(
        "ls-remote", git_url(forge, path, token="flpat-no"), fails=True
    )
    assert "You are not allowed to push code" in await git(
        "push", git_url(forge, path, bob), "main:x", fails=True
    )
    reading = git_url(forge, path, token=await forge.token(alice.id, ("read_repository",)))
    await git("ls-remote", reading)
    assert "needs the scope write_repository" in await git("push", reading, "main:x", fails=True)
    neither = git_url(forge, path, token=await forge.token(alice.id, ("read_user",)))
    assert "needs the scope read_repository" in await git("ls-remote", neither, fails=True)


async def test_guests_do_not_read_the_code_of_private_projects(forge: Forge, tmp_path: Path) -> None:
    """They read it neither by git nor as files nor through the API; they read the code of public projects like
    everybody."""
    alice, bob = await forge.user("alice"), await forge.user("bob")
    project = await forge.project(alice, members={Role.GUEST: bob})
    path = project["path_with_namespace"]
    await push_files(forge, tmp_path / "alice", project, alice, {"a": "1"})
    listed = await Git(tmp_path).run("ls-remote", git_url(forge, path, bob))
    assert "403" in listed.output
    raw, tree = f"{forge.base}/{path}/-/raw/main/a", f"/projects/{project['id']}/repository/tree"
    assert [(await bob.api.get(url)).status for url in (raw, tree)] == [404, 403]
    await alice.api.put(f"/projects/{project['id']}", {"visibility": "public"})
    assert await Git(tmp_path)("ls-remote", "--heads", git_url(forge, path, bob))
    assert [(await bob.api.get(url)).status for url in (raw, tree)] == [200, 200]


async def test_everybody_clones_public_projects(forge: Forge, tmp_path: Path) -> None:
    alice = await forge.user("alice")
    project = await forge.project(alice, visibility="public")
    await push_files(forge, tmp_path / "alice", project, alice, {"a": "1"})
    await Git(tmp_path)("clone", "--quiet", git_url(forge, project["path_with_namespace"]), "copy")
    assert (tmp_path / "copy" / "a").read_text() == "1"


async def test_a_revoked_token_stops_working_at_once(forge: Forge, tmp_path: Path) -> None:
    alice = await forge.user("alice")
    project = await forge.project(alice)
    await push_files(forge, tmp_path / "alice", project, alice, {"a": "1"})
    git, url = Git(tmp_path / "alice"), git_url(forge, project["path_with_namespace"], alice)
    await git("ls-remote", url)
    assert (await alice.api.delete("/personal_access_tokens/self")).status == 204
    assert "Authentication failed" in await git("ls-remote", url, fails=True)


async def test_a_name_that_is_no_text_is_refused_in_words(forge: Forge, tmp_path: Path) -> None:
    alice = await forge.user("alice")
    project = await forge.project(alice)
    await push_files(forge, tmp_path / "alice", project, alice, {"a": "1"})
    url = git_url(forge, project["path_with_namespace"], alice)
    for ref in ("refs/heads/a\udcff", "refs/tags/a\udcff"):
        answer = await Git(tmp_path / "alice")("push", url, f"main:{ref}", fails=True)
        assert f"'{ref[:-1]}\\udcff' is not a valid name for a branch or tag." in answer


async def test_nothing_is_pushed_to_an_archived_project(forge: Forge, tmp_path: Path) -> None:
    alice = await forge.user("alice")
    project = await forge.project(alice)
    await push_files(forge, tmp_path / "alice", project, alice, {"a": "1"})
    assert (await alice.api.post(f"/projects/{project['id']}/archive")).status == 201
    git = Git(tmp_path / "alice")
    answer = await git("push", git_url(forge, project["path_with_namespace"], alice), "main:x", fails=True)
    assert "The repository is archived" in answer


async def test_clients_that_come_first_at_once_find_one_empty_repository(
    forge: Forge, tmp_path: Path
) -> None:
    alice = await forge.user("alice")
    project = await forge.project(alice)
    remote = git_url(forge, project["path_with_namespace"], alice)
    told = await asyncio.gather(*(Git(tmp_path)("ls-remote", remote) for _ in range(4)))
    assert told == [""] * 4


async def test_projects_are_known_by_their_paths_alone(forge: Forge, tmp_path: Path) -> None:
    alice = await forge.user("alice")
    project = await forge.project(alice)
    for reference in (project["id"], "9" * 25):
        url = git_url(forge, reference, alice)
        assert "not found" in await Git(tmp_path)("ls-remote", url, fails=True)


#: (method, path and query, status, target of the redirect).
WITHOUT_SUFFIX = [
    ("GET", "/a/b/info/refs?service=git-upload-pack", 301, "/a/b.git/info/refs?service=git-upload-pack"),
    ("GET", "/a/b/info/refs?service=git-receive-pack", 301, "/a/b.git/info/refs?service=git-receive-pack"),
    ("HEAD", "/a/b/c/d/info/refs", 301, "/a/b/c/d.git/info/refs"),
    ("GET", "/a/%62/info/refs?x=%26", 301, "/a/b.git/info/refs?x=%26"),
    ("POST", "/a/b/info/lfs/objects/batch", 308, "/a/b.git/info/lfs/objects/batch"),
    ("GET", "/a/b/info/lfs/objects/00ff", 301, "/a/b.git/info/lfs/objects/00ff"),
    ("PUT", "/a/b/info/lfs/objects/00ff/3", 308, "/a/b.git/info/lfs/objects/00ff/3"),
    ("POST", "/a/b/info/lfs/locks/verify", 308, "/a/b.git/info/lfs/locks/verify"),
    ("POST", "/a/b.git/info/refs", 405, None),
    ("GET", "/a/b.git/info/lfs/objects/batch", 404, None),
    ("GET", "/a/b.git/info/refs", 403, None),
    ("GET", "//evil.example.org/b/info/refs", 404, None),
    ("GET", "/a/b/-/info/refs", 404, None),
    ("POST", "/a/b/git-upload-pack", 405, None),
]


async def test_an_address_without_its_suffix_leads_to_the_full_one(forge: Forge) -> None:
    """This does not depend on whether the project exists."""
    deviations = Deviations()
    for method, path, status, location in WITHOUT_SUFFIX:
        async with forge.session.request(method, forge.base + path, allow_redirects=False) as answer:
            told = (answer.status, answer.headers.get("Location"))
        if told != (status, location):
            deviations.append(f"{method} {path}: {told}")
    assert not deviations, deviations.report


async def test_git_clones_fetches_and_pushes_without_the_suffix(
    alice: Person, project: dict[str, Any], tmp_path: Path
) -> None:
    url = project["remote"].removesuffix(".git")
    await Git(tmp_path)("clone", "--quiet", url, "clone")
    git = Git(tmp_path / "clone")
    sha = await git.commit(b="2")
    await git("push", "--quiet", "origin", "HEAD:topic")
    await git("fetch", "--quiet", f"{url}/", "topic")
    assert await git("rev-parse", "FETCH_HEAD") == sha
    branch = await alice.api.get(f"/projects/{project['id']}/repository/branches/topic")
    assert branch.body["commit"]["id"] == sha


async def _imported(forge: Forge, path: str, token: str = "") -> str | int:
    """Return the project of an import path, or the status if there is none."""
    headers = {"Authorization": credentials(token)} if token else {}
    url = f"{forge.base}/{path}?go-get=1"
    async with forge.session.get(url, headers=headers, allow_redirects=False) as answer:
        if answer.status != 200:
            return answer.status
        host = forge.base.partition("://")[2]
        text = await answer.text()
        named = text.partition(f"<body>go get {host}/")[2].partition("<")[0]
        assert text == (
            f'<html><head><meta name="go-import" content="{host}/{named} git {forge.base}/{named}.git"></head>'
            f"<body>go get {host}/{named}</body></html>\n"
        )
        assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
        return named


async def test_import_paths_of_go_name_their_project_and_tell_nothing_of_private_ones(forge: Forge) -> None:
    alice = await forge.user("alice")
    outer = await forge.group(alice)
    inner = await forge.group(alice, parent_id=outer["id"])
    private = (await forge.project(alice, namespace_id=inner["id"]))["path_with_namespace"]
    public = (await forge.project(alice, visibility="public"))["path_with_namespace"]
    first_two = "/".join(private.split("/")[:2])
    token = alice.token
    right: list[tuple[str, str, str | int]] = [
        (public, "", public),
        (f"{public}/", "", public),
        (f"{public}/v2/internal/x", "", public),
        (f"{public}.git", "", public),
        (private, "", first_two),
        (private, "glpat-nobodys", first_two),
        (private, token, private),
        (f"{private}/pkg", token, private),
        (f"{private}/pkg/%00/%C3%BC", token, private),
        (f"{private}x/pkg", token, first_two),
        ("nobody/nothing/at/all", "", "nobody/nothing"),
        ("nobody/nothing" + "/x" * 100, token, "nobody/nothing"),
        ("a/%22%3E%3Cscript%3E", "", 404),
        ("nobody", "", 303),
    ]
    deviations = Deviations()
    for path, secret, project in right:
        if (told := await _imported(forge, path, secret)) != project:
            deviations.append(f"{path} {bool(secret)}: {told}, not {project}")
    assert not deviations, deviations.report


#: Refusals of one ref: (the local side of the refspec, the ref, words in its line of the report).
REFUSED = [
    ("HEAD", "refs/heads/main", "You are not allowed to push code to protected branches on this project."),
    ("", "refs/heads/main", "You cannot delete a protected branch by a push; use the API."),
    ("HEAD", "refs/tags/v1", "Protected tags cannot be updated."),
    ("HEAD", "refs/tags/v2", "You are not allowed to create this tag as it is protected."),
    ("", "refs/tags/v1", "You cannot delete a protected tag by a push; use the API."),
    ("HEAD", "refs/tags/main", "You cannot use default branch name to create a tag."),
    ("HEAD~2", "refs/heads/steady", "You are not allowed to force push to the protected refs/heads/steady."),
    ("HEAD", "refs/heads/HEAD", "'HEAD' is not a valid name for a branch or tag; choose another."),
    ("HEAD", "refs/heads/-x", "'-x' is not a valid name for a branch or tag; choose another."),
    ("HEAD", "refs/merge-requests/1/head", "deny updating a hidden ref"),
    ("HEAD", "refs/keep-around/x", "deny updating a hidden ref"),
]


@attrs.frozen
class Scene:
    """bob is a Developer in alice's project. `main` and tags `v*` are protected from him, and `steady` from force
    pushes."""

    forge: Forge
    bob: Person
    project: dict[str, Any]
    git: Git
    url: str

    async def refs(self) -> dict[str, str]:
        listed = [line.split("\t") for line in (await self.git("ls-remote", self.url)).splitlines()]
        return {ref: sha for sha, ref in listed}


@pytest.fixture
async def scene(forge: Forge, tmp_path: Path) -> Scene:
    alice, bob = await forge.user("alice"), await forge.user("bob")
    project = await forge.project(alice, members={Role.DEVELOPER: bob})
    await push_files(forge, tmp_path / "work", project, alice, {"a": "1"})
    git, path = Git(tmp_path / "work"), project["path_with_namespace"]
    await git.commit(a="2")
    await git("push", "--quiet", git_url(forge, path, alice), "HEAD:refs/tags/v1", "HEAD:refs/heads/steady")
    await git.commit(a="3")
    await git("push", "--quiet", git_url(forge, path, alice), "HEAD:steady")
    await git.commit(a="4")
    url = f"/projects/{project['id']}"
    rule = {"name": "steady", "push_access_level": 30}
    for kind, body in (("tags", {"name": "v*", "create_access_level": 40}), ("branches", rule)):
        assert (await alice.api.post(f"{url}/protected_{kind}", body)).status == 201
    return Scene(forge, bob, project, git, git_url(forge, path, bob))


async def test_a_refusal_of_one_ref_is_none_of_another(scene: Scene) -> None:
    head = await scene.git("rev-parse", "HEAD")
    deviations = Deviations()
    for name, rows in {
        "with": [row for row in REFUSED if row[0]],
        "without": [row for row in REFUSED if not row[0]],
    }.items():
        before = await scene.refs()
        refspecs = [f"{source}:{ref}" for source, ref, _ in rows]
        ran = await scene.git.run(
            "push", "--force", scene.url, f"HEAD:refs/heads/{name}", *refspecs, f"HEAD:refs/heads/{name}-too"
        )
        lines = [line for line in ran.output.splitlines() if line.startswith(" ! ")]
        for source, ref, words in rows:
            short = ref.removeprefix("refs/heads/").removeprefix("refs/tags/")
            if not any(f" {short} ({words})" in line for line in lines):
                deviations.append(f"{source}:{ref}: {ran.output}")
        assert (ran.code, len(lines)) == (1, len(rows)), ran.output
        new = {f"refs/heads/{name}": head, f"refs/heads/{name}-too": head}
        assert await scene.refs() == before | new
    assert not deviations, deviations.report


async def test_an_atomic_push_moves_all_or_nothing(scene: Scene) -> None:
    before = await scene.refs()
    for ref in ("refs/heads/main", "refs/heads/HEAD", "refs/merge-requests/1/head"):
        printed = await scene.git(
            "push", "--atomic", scene.url, "HEAD:refs/heads/with", f"HEAD:{ref}", fails=True
        )
        assert "[remote rejected]" in printed
        assert await scene.refs() == before, ref
    await scene.git("push", "--atomic", scene.url, "HEAD:refs/heads/one", "HEAD:refs/heads/two")
    assert set(await scene.refs()) == {*before, "refs/heads/one", "refs/heads/two"}


async def test_a_mirror_of_a_clone_with_refs_of_the_server_moves_all_others(scene: Scene) -> None:
    """Tools that move repositories do this: `git clone --mirror`, and later `git push --mirror`."""
    repository = scene.forge.repository(scene.project["id"])
    head = (await scene.refs())["refs/heads/main"]
    await set_internal_ref(repository, "refs/merge-requests/1/head", head)
    target = await scene.forge.project(scene.bob)
    url = git_url(scene.forge, target["path_with_namespace"], scene.bob)
    mirror = Git(scene.git.folder / "mirror")
    await scene.git("clone", "--quiet", "--mirror", scene.url, "mirror")
    printed = await mirror("push", "--mirror", url, fails=True)
    assert printed.count(" ! ") == 1
    assert "refs/merge-requests/1/head -> refs/merge-requests/1/head (deny updating a hidden ref)" in printed
    heads = {ref: sha for ref, sha in (await scene.refs()).items() if "merge-requests" not in ref}
    listed = [line.split("\t") for line in (await mirror("ls-remote", url)).splitlines()]
    assert {ref: sha for sha, ref in listed} == heads


async def test_a_name_that_is_no_text_is_refused_alone(scene: Scene) -> None:
    head = await scene.git("rev-parse", "HEAD")
    odd, plain = "refs/heads/zweig-?", "refs/heads/zweig"
    body = commands((NO_COMMIT, head, odd), (NO_COMMIT, head, plain)).replace(b"?", b"\xfc")
    told = await send_push(
        scene.forge,
        scene.project["path_with_namespace"],
        scene.bob,
        body + await pack_of(scene.git, "HEAD"),
    )
    assert "ng refs/heads/zweig-\ufffd 'refs/heads/zweig-\\udcfc' is not a valid name" in told.text
    assert f"ok {plain}" in told.text
    assert (await scene.refs())[plain] == head


async def test_what_is_refused_has_not_been_pushed_wherever_it_stands(scene: Scene) -> None:
    """If a protected tag is already where a push would move it, the push did not move it: no pipeline is created."""
    followed: list[str] = []

    async def listen(
        _: Transaction, project: MovedProject, __: int | None, updates: Sequence[RefUpdate]
    ) -> None:
        if project.id == scene.project["id"]:
            followed.extend(update.ref for update in updates)

    listeners = scene.forge.server.app[SERVICES][REF_LISTENERS]
    listeners.append(listen)
    tag = (await scene.refs())["refs/tags/v1"]
    head = await scene.git("rev-parse", "HEAD")
    pack = await pack_of(scene.git, "HEAD")
    told = await send_push(
        scene.forge,
        scene.project["path_with_namespace"],
        scene.bob,
        commands((head, tag, "refs/tags/v1"), (NO_COMMIT, head, "refs/heads/free")) + pack,
    )
    alone = await send_push(
        scene.forge,
        scene.project["path_with_namespace"],
        scene.bob,
        commands((head, tag, "refs/tags/v1")) + pack,
    )
    listeners.remove(listen)
    assert "ng refs/tags/v1 pre-receive hook declined" in alone.text
    assert "ng refs/tags/v1 Protected tags cannot be updated." in told.text
    assert followed == ["refs/heads/free"]


async def test_a_server_that_dies_in_its_report_has_refused_the_rest(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = receive_pack.report_of
    monkeypatch.setattr(receive_pack, "report_of", lambda *given: real(*given)[:-40])
    before = await scene.refs()
    printed = await scene.git("push", scene.url, "HEAD:refs/heads/one", "HEAD:refs/heads/two", fails=True)
    assert "HEAD -> two (proc-receive failed to report status)" in printed
    assert set(await scene.refs()) == {*before, "refs/heads/one"}


MISLEADING = ["HEAD", "HEAD/a", "refs/heads/main", "refs/tags/v1", "-x", "AB" * 20, f"{'0' * 40}/a", "@"]
ACTION = {"action": "create", "file_path": "new.txt", "content": "new"}
INVALID = {"message": "Branch name is invalid"}


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
    """`start_branch` is the name of a branch, and not any other name of a commit."""
    sha = (await alice.api.get(f"{project['url']}/branches/main")).body["commit"]["id"]
    for start in ("HEAD", "refs/heads/main", sha):
        body = {"branch": "new", "start_branch": start, "commit_message": "New", "actions": [ACTION]}
        answer = await alice.api.post(f"{project['url']}/commits", body)
        assert (answer.status, answer.body) == (
            400,
            {"message": "You can only create or edit files when you are on a branch"},
        )


def _readers(project: dict[str, Any], name: str) -> list[tuple[str, Callable[[Any], Any]]]:
    """Return the places where a revision can be given, and functions that find the revision in the answers."""
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
