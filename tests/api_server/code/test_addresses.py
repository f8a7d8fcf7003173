"""Addresses of repositories as clients write them: without `.git`, and import paths of Go."""

from pathlib import Path
from typing import Any

from tests.api_server.code.raw_push import credentials
from tests.support.deviations import Deviations
from tests.support.forge import Forge, Person
from tests.support.git_client import Git

#: (method, path and query, status, where it leads).
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
    """Whether there is such a project or not."""
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
    """The project that an import path leads to, or a status without one."""
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
