"""Files and trees through the API: reading, writing, parallel changes, paths that git refuses, and huge files."""

import asyncio
import base64
import hashlib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
from pygit2.enums import FileMode, ObjectType

from api_server.code.committing import decoded
from api_server.code.reading import READS, REFS, STREAMS
from api_server.git import spawning, trees
from api_server.git.repositories import Repository
from api_server.web.context import SERVICES
from api_server.web.errors import ApiError
from tests.support.forge import Answer, Forge, Person
from tests.support.git_client import git_url, push_files
from tests.support.large_trees import Plumbing, bomb, plumbing
from tests.support.merge_requests import commit, head_of
from tests.support.waiting import until

SMALL = bytes(range(256)) * 10
LARGE = bytes(range(255)) * 4_000 + b"!"  # not a multiple of three
LIMIT = len(LARGE)


@pytest.fixture
async def stored(forge: Forge, tmp_path: Path) -> Any:
    """A project's files, on a server that does not answer larger ones as JSON."""
    with forge.changed_settings(file_json_limit=LIMIT):
        alice = await forge.user("alice")
        project = await forge.project(alice)
        files: dict[str, str | bytes] = {"small": SMALL, "large": LARGE, "larger": LARGE + b"!", "a\nb": "x"}
        sha = await push_files(forge, tmp_path / "work", project, alice, files)
        yield forge, alice, f"/projects/{project['id']}/repository/files", sha


async def raw(forge: Forge, alice: Person, path: str, **headers: str) -> tuple[int, bytes, Any]:
    sent = {"PRIVATE-TOKEN": alice.token} | headers
    async with forge.session.get(f"{forge.base}/api/v4{path}", headers=sent) as answer:
        return answer.status, await answer.read(), answer.headers


@pytest.mark.parametrize(("name", "content"), [("small", SMALL), ("large", LARGE)])
async def test_a_file_as_json_and_raw(stored: Any, name: str, content: bytes) -> None:
    forge, alice, where, sha = stored
    answer = await alice.api.get(f"{where}/{name}?ref=main")
    blob = answer.body["blob_id"]
    assert (answer.status, answer.body) == (
        200,
        {
            "file_name": name,
            "file_path": name,
            "size": len(content),
            "encoding": "base64",
            "content_sha256": hashlib.sha256(content).hexdigest(),
            "ref": "main",
            "blob_id": blob,
            "commit_id": sha,
            "last_commit_id": sha,
            "execute_filemode": False,
            "content": base64.b64encode(content).decode(),
        },
    )
    assert list(answer.body)[-1] == "content"
    status, body, headers = await raw(forge, alice, f"{where}/{name}/raw")
    assert (status, body == content, headers["ETag"]) == (200, True, f'"{blob}"')
    status, body, headers = await raw(forge, alice, f"{where}/{name}/raw", Range="bytes=2500-2509")
    assert (status, body, headers["Content-Range"]) == (
        206, content[2500:2510], f"bytes 2500-2509/{len(content)}",
    )  # fmt: skip
    status, _, headers = await raw(forge, alice, f"{where}/{name}/raw", Range=f"bytes={len(content)}-")
    assert (status, headers["Content-Range"]) == (416, f"bytes */{len(content)}")
    for path in (f"{where}/{name}?ref=main", f"{where}/{name}/raw"):
        tag = (await alice.api.get(path)).headers["ETag"]
        known = await alice.api.get(path, headers={"If-None-Match": tag})
        assert (known.status, known.body, known.headers["ETag"]) == (304, "", tag)


async def test_files_beyond_the_limit_are_read_raw(stored: Any) -> None:
    forge, alice, where, _ = stored
    refused = await alice.api.get(f"{where}/larger")
    told = f"413 Request Entity Too Large - files beyond {LIMIT} bytes are read at "
    assert (refused.status, refused.body) == (
        413,
        {"message": f"{told}/projects/:id/repository/files/:file_path/raw"},
    )
    assert (await raw(forge, alice, f"{where}/larger/raw"))[:2] == (200, LARGE + b"!")
    assert (await alice.api.request("HEAD", f"{where}/larger")).status == 200


@pytest.mark.parametrize("name", ["small", "large"])
async def test_head_tells_of_a_file_in_gitlabs_header_fields(stored: Any, name: str) -> None:
    _, alice, where, sha = stored
    told = {
        "Blob-Id": (await alice.api.get(f"{where}/{name}")).body["blob_id"],
        "Commit-Id": sha,
        "Encoding": "base64",
        "Execute-Filemode": "false",
        "File-Name": name,
        "File-Path": name,
        "Ref": "HEAD",
        "Size": str(len(SMALL if name == "small" else LARGE)),
    }
    head = await alice.api.request("HEAD", f"{where}/{name}")
    fields = {key: value for key, value in head.headers.items() if key.lower().startswith("x-gitlab-")}
    assert (head.status, fields) == (
        200,
        {f"X-Gitlab-{key}": value for key, value in (told | {"Last-Commit-Id": sha}).items()},
    )
    bytes_alone = await alice.api.request("HEAD", f"{where}/{name}/raw")
    assert {key: bytes_alone.headers[f"X-Gitlab-{key}"] for key in told} == told
    assert bytes_alone.headers["Content-Length"] == told["Size"]


async def test_a_name_with_a_line_break_stands_in_no_header_field(stored: Any) -> None:
    _, alice, where, _ = stored
    head = await alice.api.request("HEAD", f"{where}/a%0Ab")
    assert (head.status, head.headers["X-Gitlab-File-Name"]) == (200, "a_b")


async def test_a_caller_has_only_so_many_large_files_under_way(new_forge: Any, tmp_path: Path) -> None:
    async with new_forge(
        file_streams_per_caller=1, repository_queue_timeout=0.0, file_json_limit=2**30
    ) as forge:
        alice = await forge.user("alice")
        project = await forge.project(alice, visibility="public")
        await push_files(forge, tmp_path / "work", project, alice, {"large": bytes(20_000_000), "small": "x"})
        where = f"/projects/{project['id']}/repository/files"
        page = f"{forge.base}/{project['path_with_namespace']}/-/raw/main"
        headers = {"PRIVATE-TOKEN": alice.token}
        async with forge.session.get(f"{forge.base}/api/v4{where}/large/raw", headers=headers) as slow:
            assert slow.status == 200
            refused = await alice.api.get(f"{where}/large")
            assert (refused.status, refused.headers["Retry-After"]) == (429, "5")
            plain = await alice.api.get(f"{page}/large")
            assert (plain.status, plain.headers["Retry-After"], plain.body) == (
                429, "5", "Too many of your requests are under way at once. Try again later.\n",
            )  # fmt: skip
            assert (await alice.api.get(f"{where}/small")).status == 200
            stranger = await forge.anonymous.request("HEAD", f"{page}/large")
            assert (stranger.status, stranger.headers["Content-Length"]) == (200, "20000000")
            assert len(await slow.read()) == 20_000_000
        await until(lambda: not forge.server.app[SERVICES][STREAMS].in_use)
        assert (await alice.api.get(f"{page}/large")).status == 200


REFUSED = {"message": "400 Bad request - content is not valid base64"}
#: A text, and the bytes that Go decodes from it; `None` is an error.
DECODED: dict[str, bytes | None] = {
    "": b"",
    "\n": b"",
    "aGVsbG8=": b"hello",
    "aGVsbG8=\n": b"hello",
    "aGVsbG8=\r\n": b"hello",
    "aGVsbG8=\n\n": b"hello",
    "\naGVsbG8=": b"hello",
    "aGVs\nbG8=": b"hello",
    "aGVs\r\nbG8=\r\n": b"hello",
    "aGVsb\rG8=": b"hello",
    "aGVsbG8\n=": b"hello",
    "aGVsbG9=": b"hello",
    "+/+/": b"\xfb\xff\xbf",
    "aGVsbG8": None,
    "aGVs bG8=": None,
    "aGVsbG8= ": None,
    "aGVsbG8=\t": None,
    "aGVsbG8==": None,
    "aGVsbG8=aGk=": None,
    "aGVsbG8=\naGk=": None,
    "aGVs=bG8": None,
    "-_-_": None,
    "a": None,
    "aQ=": None,
    "=": None,
    "====": None,
    "é": None,
    "aGk=\0": None,
}


def _decoded(content: str) -> object:
    try:
        return decoded(content, "base64")
    except ApiError as refused:
        return None if refused.body == REFUSED else refused.body


def test_base64_is_read_as_go_reads_it() -> None:
    assert {content: _decoded(content) for content in DECODED} == DECODED


async def test_files_and_commits_take_it_in_lines(forge: Forge) -> None:
    """`base64 FILE`, Ruby's `Base64.encode64` and MIME write lines like this."""
    project = await forge.project(initialize_with_readme=True)
    where = f"/projects/{project['id']}/repository"
    lines = {"content": "aGVs\r\nbG8=\r\n", "encoding": "base64"}
    new = {"branch": "main", "commit_message": "a"}
    made = await forge.root.post(f"{where}/files/one", new | lines)
    changed = await forge.root.put(f"{where}/files/README.md", new | lines)
    action = {"action": "create", "file_path": "two"} | lines
    committed = await forge.root.post(f"{where}/commits", new | {"actions": [action]})
    assert (made.status, changed.status, committed.status) == (201, 200, 201)
    for name in ("one", "README.md", "two"):
        assert (await forge.root.get(f"{where}/files/{name}/raw")).body == "hello"


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


async def commit_actions(
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
        assert_refused(await commit_actions(alice, project, action), path)
    url = f"{project['url']}/files/{quote(path, safe='')}"
    body = {"branch": "side", "content": "x", "commit_message": "Change"}
    assert_refused(await alice.api.post(url, body), path)
    empty = await alice.api.post("/projects", {"name": f"Empty {hash(path)}"})
    first = {"url": f"/projects/{empty.body['id']}/repository"}
    assert_refused(await commit_actions(alice, first, created, branch="main"), path)
    assert repository.lookup_reference("refs/heads/side").target == side


async def test_a_link_cannot_become_gitmodules(
    project: dict[str, Any], alice: Person, repository: Repository
) -> None:
    (project["git"].folder / "link").symlink_to("README.md")
    await project["git"].commit_files({})
    await project["git"]("push", project["remote"], "HEAD:refs/heads/links")
    for path in (".gitmodules", "src/GITMOD~1"):
        move = {"action": "move", "file_path": path, "previous_path": "link"}
        assert_refused(await commit_actions(alice, project, move, branch="links"), path)


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
        await commit_actions(alice, project, created),
    ]
    assert [(answer.status, answer.body) for answer in answers] == [(400, refusal)] * 2


async def test_what_git_reads_for_itself_is_not_large(project: dict[str, Any], alice: Person) -> None:
    """git would read it whole, also if an existing file is only moved there."""
    await project["git"].commit_files({"large": b"#" * (2**20 + 1)})
    await project["git"]("push", project["remote"], "HEAD:refs/heads/large")
    move = {"action": "move", "file_path": ".gitattributes", "previous_path": "large"}
    told = await commit_actions(alice, project, move, branch="large")
    assert (told.status, told.body) == (400, {"message": ".gitattributes may have 1048576 bytes at most"})


def _with_an_unfit_path_of_old(repository: Repository) -> None:
    """Create the branch `old` with a file at a path that git would refuse now."""
    head = repository.lookup_reference("refs/heads/main").peel()
    inner = repository.write(ObjectType.TREE, b"100644 config\0" + repository.create_blob(b"x").raw)
    entry = b"%o %s\0" % (FileMode.TREE, ".git\u200c".encode()) + inner.raw
    tree = repository.write(ObjectType.TREE, entry + head.tree.read_raw())
    commit_actions = repository.create_commit(None, head.author, head.author, "Old", tree, [head.id])
    repository.references.create("refs/heads/old", commit_actions)


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
        assert_refused(await commit_actions(alice, project, action, branch="old"), path)
    assert (await commit_actions(alice, project, repair, branch="old")).status == 201
    await git("fetch", "--quiet", project["remote"], "old")
    await git("reset", "--quiet", "--hard", "FETCH_HEAD")
    await git.commit_files({"pushed.txt": "again\n"})
    await git("push", "--quiet", project["remote"], "HEAD:refs/heads/old")


Scene = tuple[Person, dict[str, Any], dict[str, str]]


@pytest.fixture(scope="module")
async def scene(forge: Forge) -> Scene:
    """A project, and the commits that created its files `a`, `b` and `c`, in that order."""
    alice = await forge.user()
    project = await forge.project(alice)
    made = {name: await commit(alice.api, project, "main", name) for name in ("a", "b", "c")}
    return alice, project, made


def file_url(project: dict[str, Any], name: str) -> str:
    return f"/projects/{project['id']}/repository/files/{name}"


async def test_the_files_own_last_commit_counts(scene: Scene) -> None:
    """The branch's last commit does not count, because others have changed other files with it."""
    alice, project, made = scene
    head = await alice.api.request("HEAD", f"{file_url(project, 'a')}?ref=main")
    assert head.headers["X-Gitlab-Last-Commit-Id"] == made["a"]
    shown = (await alice.api.get(f"{file_url(project, 'a')}?ref=main")).body
    assert (shown["last_commit_id"], shown["commit_id"]) == (made["a"], made["c"])
    body = {"branch": "main", "content": "2", "commit_message": "Change a", "last_commit_id": made["a"]}
    assert (await alice.api.put(file_url(project, "a"), body)).status == 200
    again = await alice.api.put(file_url(project, "a"), body | {"content": "3"})
    text = "You are attempting to update a file that has changed since you started editing it."
    assert (again.status, again.body) == (400, {"message": text})
    removed = await alice.api.delete(file_url(project, "a"), json=body)
    text = "You are attempting to delete a file that has been previously updated."
    assert (removed.status, removed.body) == (400, {"message": text})


@pytest.mark.parametrize(
    "action",
    [
        {"action": "update", "file_path": "b", "content": "2"},
        {"action": "delete", "file_path": "b"},
        {"action": "move", "file_path": "d", "previous_path": "b"},
        {"action": "chmod", "file_path": "b", "execute_filemode": True},
    ],
    ids=lambda action: action["action"],
)
async def test_each_action_of_a_commit_may_say_what_it_knows(scene: Scene, action: dict[str, Any]) -> None:
    alice, project, made = scene
    url = f"/projects/{project['id']}/repository/commits"
    before = await head_of(alice.api, project, "main")
    body = {"branch": "main", "commit_message": "Change", "actions": [action | {"last_commit_id": made["c"]}]}
    refused = await alice.api.post(url, body)
    text = "The file has changed since you started editing it: b"
    assert (refused.status, refused.body) == (400, {"message": text})
    assert await head_of(alice.api, project, "main") == before
    known = body | {"actions": [action | {"last_commit_id": made["b"]}], "start_branch": "main"}
    assert (await alice.api.post(url, known | {"branch": f"of-{action['action']}"})).status == 201


async def test_a_file_is_written_with_its_mode(scene: Scene) -> None:
    alice, project, _ = scene
    url = file_url(project, "run.sh")
    body = {"branch": "main", "content": "true", "commit_message": "Change"}
    for method, sent, mode in (
        ("POST", {"execute_filemode": True}, "100755"),
        ("PUT", {"content": "false"}, "100755"),
        ("PUT", {"content": "false", "execute_filemode": False}, "100644"),
    ):
        answer = await alice.api.request(method, url, json=body | sent)
        assert answer.status in (200, 201), answer
        tree = (await alice.api.get(f"/projects/{project['id']}/repository/tree?ref=main")).body
        assert {node["mode"] for node in tree if node["name"] == "run.sh"} == {mode}


LEVELS = 10
#: A time limit of a second, and enough memory for longer than that.
SOON = {"repository_read_timeout": 1, "git_memory_limit": 4 * 2**30}


async def pushed(forge: Forge, alice: Person, made: Plumbing, tree: str) -> str:
    """Push a commit with this tree to a new project; return the path of its repository."""
    project = await forge.project(alice)
    await made.git(
        "push",
        "--quiet",
        git_url(forge, project["path_with_namespace"], alice),
        f"{made.commit(tree)}:refs/heads/main",
    )
    return f"/projects/{project['id']}/repository"


def nodes(prefix: str = "", level: int = 1) -> Iterator[tuple[str, str]]:
    """Yield types and paths of the entries in the bomb, in git's order."""
    for number in range(10):
        path = f"{prefix}{number}"
        yield ("blob" if level == LEVELS else "tree", path)
        if level < LEVELS:
            yield from nodes(f"{path}/", level + 1)


def shown(body: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(one["type"], one["path"]) for one in body]


async def test_a_page_of_a_tree_without_end(forge: Forge, alice: Person, tmp_path: Path) -> None:
    made = await plumbing(tmp_path)
    where = f"{await pushed(forge, alice, made, bomb(made, LEVELS))}/tree?recursive=true&per_page=20"
    folders = (node for node in nodes() if node[0] == "tree")
    for page in ("1", "2", "3"):
        answer = await alice.api.get(f"{where}&page={page}")
        assert (answer.status, shown(answer.body)) == (200, list(islice(folders, 20)))
        assert ("X-Total" in answer.headers, answer.headers["X-Next-Page"]) == (False, str(int(page) + 1))
    far = await alice.api.get(f"{where}&page=2501")
    assert (far.status, far.body["error"][:50]) == (405, "Offset pagination has a maximum allowed offset of ")


async def test_a_tree_without_end_is_walked_by_keyset(forge: Forge, alice: Person, tmp_path: Path) -> None:
    made = await plumbing(tmp_path)
    where = f"{await pushed(forge, alice, made, bomb(made, LEVELS))}/tree?recursive=true&per_page=50"
    following, expected = f"{where}&pagination=keyset", nodes()
    for _ in range(3):
        answer = await alice.api.get(following)
        assert (answer.status, shown(answer.body)) == (200, list(islice(expected, 50)))
        link = urlsplit(answer.headers["Link"].partition(">")[0].removeprefix("<"))
        following = f"{link.path.removeprefix('/api/v4')}?{link.query}"
    wrong = await alice.api.get(f"{where}&pagination=keyset&page_token=%25")
    assert (wrong.status, wrong.body) == (400, {"error": "page_token is invalid"})


@pytest.mark.parametrize("page", ["page=1", "page=400", "pagination=keyset"])
async def test_a_page_costs_no_more_than_the_nodes_on_it(
    forge: Forge, alice: Person, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, page: str
) -> None:
    """All other entries are skipped as git prints them."""
    made, kept = await plumbing(tmp_path), []
    where = f"{await pushed(forge, alice, made, bomb(made, LEVELS))}/tree?recursive=true&per_page=20"
    make = trees._node
    monkeypatch.setattr(trees, "_node", lambda *about: kept.append(about) or make(*about))
    answer = await alice.api.get(f"{where}&{page}")
    assert (answer.status, len(answer.body), len(kept)) == (200, 20, 20)


async def test_of_more_nodes_than_are_counted_the_kinds_keep_their_order(
    forge: Forge, alice: Person, tmp_path: Path
) -> None:
    made = await plumbing(tmp_path)
    blob = ("100644", made.blob())
    files = {f"f{number:05}": blob for number in range(10_000)}
    folder = ("040000", made.tree({"in": blob}))
    link = ("160000", "1" * 40)
    where = await pushed(forge, alice, made, made.tree(files | {"a": link, "d": folder, "g": folder}))
    expected = [("tree", "d"), ("tree", "g"), *(("blob", name) for name in files), ("commit", "a")]
    first = await alice.api.get(f"{where}/tree?per_page=3")
    assert (shown(first.body), "X-Total" in first.headers) == (expected[:3], False)
    last = await alice.api.get(f"{where}/tree?per_page=3&page=3335")
    assert (shown(last.body), last.headers["X-Next-Page"]) == (expected[-1:], "")
    deep = await alice.api.get(f"{where}/tree?recursive=true&per_page=4")
    assert shown(deep.body) == [*expected[:2], ("blob", "d/in"), ("blob", "f00000")]
    folder_page = await alice.api.get(f"{where}/tree?path=d")
    assert (shown(folder_page.body), folder_page.headers["X-Total"]) == ([("blob", "d/in")], "1")


def _children() -> set[str]:
    """Return the processes that this one has started and that still run."""
    return {pid for found in Path("/proc/self/task").glob("*/children") for pid in found.read_text().split()}


@asynccontextmanager
async def limited(new_forge: Any, folder: Path, **limits: float) -> AsyncIterator[tuple[Forge, Person, str]]:
    """Run a server with a bomb to read and low limits."""
    usual = spawning._current  # the limits of this process
    async with new_forge(repository_reads_per_caller=1, repository_queue_timeout=0.0, **limits) as forge:
        alice = await forge.user("alice")
        made = await plumbing(folder / "work")
        try:
            yield forge, alice, await pushed(forge, alice, made, bomb(made, LEVELS))
        finally:
            spawning.set_limits(usual)


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        (SOON, "reading the repository took longer than 1 seconds"),
        ({"git_memory_limit": 64 * 2**20}, "reading the repository takes more memory than there is for it"),
    ],
)
async def test_what_takes_too_much_is_given_up(
    new_forge: Any, tmp_path: Path, limits: dict[str, float], reason: str
) -> None:
    async with limited(new_forge, tmp_path, **limits) as (_, alice, where):
        before = _children()
        for read in ("commits/main", "commits/main/diff"):
            answer = await alice.api.get(f"{where}/{read}")
            told = {"message": f"503 Service Unavailable - {reason}"}
            assert (answer.status, answer.body) == (503, told), read
        assert _children() == before
        assert (await alice.api.get(f"{where}/commits/main?stats=false")).status == 200


async def test_one_caller_reads_only_so_much_at_once(new_forge: Any, tmp_path: Path) -> None:
    async with limited(new_forge, tmp_path, **SOON) as (forge, alice, where):
        bob = await forge.new_member(int(where.split("/")[2]), 30, "bob")  # type: ignore[arg-type]
        slow = asyncio.create_task(alice.api.get(f"{where}/commits/main"))
        await until(lambda: forge.server.app[SERVICES][READS].in_use)
        refused = await alice.api.get(f"{where}/tree")
        assert (refused.status, refused.headers["Retry-After"], refused.body) == (
            429,
            "5",
            {"message": {"error": "This endpoint has been requested too many times. Try again later."}},
        )
        assert (await bob.api.get(f"{where}/tree")).status == 200
        assert (await slow).status == 503
        assert (await alice.api.get(f"{where}/tree")).status == 200
        for kind in ("branches", "tags"):
            async with forge.server.app[SERVICES][REFS].slot(("user", alice.id)):
                assert (await alice.api.get(f"{where}/{kind}")).status == 429
                assert (await bob.api.get(f"{where}/{kind}")).status == 200
            assert (await alice.api.get(f"{where}/{kind}")).status == 200


@pytest.mark.parametrize("keyword", ["include: '*.yml'", "build: {script: x, rules: [{exists: ['**/*.c']}]}"])
async def test_a_pipeline_of_more_files_than_are_compared_says_so(
    forge: Forge, alice: Person, tmp_path: Path, keyword: str
) -> None:
    made = await plumbing(tmp_path)
    config = ("100644", made.blob(f"{keyword}\nother: {{script: x}}\n".encode()))
    tree = made.tree({"deep": ("040000", bomb(made, LEVELS)), ".gitlab-ci.yml": config})
    where = (await pushed(forge, alice, made, tree)).removesuffix("/repository")
    made_pipeline = await alice.api.post(f"{where}/pipeline?ref=main")
    assert (made_pipeline.status, made_pipeline.body) == (
        400,
        {"message": {"base": ["Wildcards and `exists` are for up to 200000 files; there are more"]}},
    )


async def test_a_commit_to_a_tree_without_end_is_refused(forge: Forge, alice: Person, tmp_path: Path) -> None:
    made = await plumbing(tmp_path)
    where = await pushed(forge, alice, made, bomb(made, LEVELS))
    one = {"branch": "main", "commit_message": "Add", "content": "x"}
    several = {"branch": "main", "commit_message": "Add", "actions": [{"action": "delete", "file_path": "1"}]}
    refusal = {"message": "The branch has more than 100000 files: change it by a push"}
    for answer in (
        await alice.api.post(f"{where}/files/new", one),
        await alice.api.post(f"{where}/commits", several),
    ):
        assert (answer.status, answer.body) == (400, refusal)
