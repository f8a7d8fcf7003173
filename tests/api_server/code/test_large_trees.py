"""Trees that nobody could read to their end: a page costs what it shows, and what takes long is given up."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from api_server.code.reading import READS
from api_server.git import spawning, trees
from api_server.web.context import SERVICES
from tests.support.forge import Forge, Person
from tests.support.git_client import git_url
from tests.support.large_trees import Plumbing, bomb, plumbing
from tests.support.waiting import until

LEVELS = 10
#: A second; and memory for longer than that.
SOON = {"repository_read_timeout": 1, "git_memory_limit": 4 * 2**30}


async def pushed(forge: Forge, alice: Person, made: Plumbing, tree: str) -> str:
    """The repository of a new project whose one commit has this tree."""
    project = await forge.project(alice)
    await made.git(
        "push",
        "--quiet",
        git_url(forge, project["path_with_namespace"], alice),
        f"{made.commit(tree)}:refs/heads/main",
    )
    return f"/projects/{project['id']}/repository"


def nodes(prefix: str = "", level: int = 1) -> Iterator[tuple[str, str]]:
    """Kinds and paths in the bomb, as git sorts them."""
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
    """All others are passed over as git prints them."""
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
    """The processes that this one has started and that still run."""
    return {pid for found in Path("/proc/self/task").glob("*/children") for pid in found.read_text().split()}


@asynccontextmanager
async def limited(new_forge: Any, folder: Path, **limits: float) -> AsyncIterator[tuple[Forge, Person, str]]:
    """A server with a bomb to read, which gives up soon."""
    usual = spawning._current  # which are the process's
    async with new_forge(repository_reads_per_caller=1, repository_patience=0.0, **limits) as forge:
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
        await until(lambda: forge.server.app[SERVICES][READS].held)
        refused = await alice.api.get(f"{where}/tree")
        assert (refused.status, refused.headers["Retry-After"], refused.body) == (
            429,
            "5",
            {"message": {"error": "This endpoint has been requested too many times. Try again later."}},
        )
        assert (await bob.api.get(f"{where}/tree")).status == 200
        assert (await slow).status == 503
        assert (await alice.api.get(f"{where}/tree")).status == 200


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
