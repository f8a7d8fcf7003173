"""What the source's side answers about its refs and its history."""

from api_server.git.remote.connection import Refs, descents_that_hold, read_source
from tests.api_server.mirrors.repositories import BareRepository

UNKNOWN = "1" * 40


async def test_reads_branches_tags_and_the_default_branch(source: BareRepository) -> None:
    commit = source.commit("first")
    tag = source.tag_object("v1", commit)
    source.set_refs(
        {"refs/heads/a b".replace(" ", "é"): commit, "refs/heads/main": commit, "refs/tags/v1": tag}
    )
    source.set_refs({"refs/merge-requests/1/head": commit})
    source.git("symbolic-ref", "refs/heads/alias", "refs/heads/main")
    read = await read_source(source.path)
    assert read.default_branch == "refs/heads/main"
    names = ["refs/heads/aéb", "refs/heads/alias", "refs/heads/main"]
    ids = dict.fromkeys(names, commit) | {"refs/tags/v1": tag}
    assert read.refs == Refs(ids, symbolic=frozenset({"refs/heads/alias"}))


async def test_an_empty_repository_has_no_default_branch(source: BareRepository) -> None:
    read = await read_source(source.path)
    assert (read.refs, read.default_branch) == (Refs({}), None)


async def test_knows_which_commits_descend_from_which(source: BareRepository) -> None:
    first = source.commit("first")
    left, right = source.commit("left", first), source.commit("right", first)
    merge = source.commit("merge", left, right)
    tag = source.tag_object("v1", left)
    holding = {(first, first), (first, merge), (right, merge), (tag, merge), (first, tag), (left, tag)}
    others = {(merge, first), (left, right), (UNKNOWN, merge), (first, UNKNOWN), (right, tag)}
    assert await descents_that_hold(source.path, holding | others) == holding
    assert await descents_that_hold(source.path, []) == set()
