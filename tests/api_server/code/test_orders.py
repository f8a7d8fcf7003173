"""Lists of branches and tags have what GitLab's have, in their orders."""

from typing import Any

import pytest
from pygit2 import Signature
from pygit2.enums import ObjectType

from tests.support.deviations import Deviations
from tests.support.forge import Forge, Person

Scene = tuple[Person, str]


@pytest.fixture(scope="module")
async def scene(forge: Forge) -> Scene:
    """Commits are of another order than the names of their branches and tags; `v1.10` is of an old one, made last."""
    alice = await forge.user()
    project = await forge.project(alice, initialize_with_readme=True)
    repository = forge.repository(project["id"])
    tree = repository.lookup_reference("refs/heads/main").peel().tree.id
    for day, (branch, tag) in enumerate([("x-b", "v1.9"), ("x-c", "v1.2"), ("x-a", "w")]):
        made = repository.create_commit(None, _on(day), _on(day), "Change", tree, [])
        repository.references.create(f"refs/heads/{branch}", made)
        repository.references.create(f"refs/tags/{tag}", made)
    older = repository.lookup_reference("refs/tags/v1.9").target
    repository.create_tag("v1.10", older, ObjectType.COMMIT, _on(9), "late")
    return alice, f"/projects/{project['id']}/repository"


def _on(day: int) -> Signature:
    return Signature("Alice", "alice@example.org", 1_700_000_000 + 86_400 * day)


async def names(scene: Scene, query: str) -> Any:
    alice, url = scene
    answer = await alice.api.get(f"{url}/{query}")
    return [one["name"] for one in answer.body] if answer.status == 200 else answer.body


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", "abc"),
        ("&sort=name_asc", "abc"),
        ("&sort=updated_asc", "bca"),
        ("&sort=updated_desc", "acb"),
        ("&sort=updated_desc&per_page=1&page=2", "c"),
    ],
)
async def test_branches_come_by_name_or_by_their_commits(scene: Scene, query: str, expected: str) -> None:
    assert await names(scene, f"branches?search=x-{query}") == [f"x-{one}" for one in expected]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", ["v1.10", "w", "v1.2", "v1.9"]),
        ("?sort=asc", ["v1.9", "v1.2", "w", "v1.10"]),
        ("?order_by=name", ["w", "v1.9", "v1.2", "v1.10"]),
        ("?order_by=version&sort=asc", ["v1.2", "v1.9", "v1.10", "w"]),
        ("?order_by=version&search=v1", ["v1.10", "v1.9", "v1.2"]),
    ],
)
async def test_tags_come_by_their_making_name_or_version(
    scene: Scene, query: str, expected: list[str]
) -> None:
    assert await names(scene, f"tags{query}") == expected


#: What is looked for, and what is found among the branches `main`, `x-a`, `x-b`, `x-c`, and the tags.
SEARCHES = [
    ("branches?search=A", ["main", "x-a"]),
    ("branches?search=^X-", ["x-a", "x-b", "x-c"]),
    ("branches?search=^a", []),
    ("branches?search=A%24", ["x-a"]),
    ("branches?search=-", ["x-a", "x-b", "x-c"]),
    ("branches?search=^", ["main", "x-a", "x-b", "x-c"]),
    ("tags?search=^v1.1&order_by=name", ["v1.10"]),
    ("tags?search=9%24&order_by=name", ["v1.9"]),
]


async def test_a_search_is_for_a_part_a_beginning_or_an_end(scene: Scene) -> None:
    deviations = Deviations()
    for query, found in SEARCHES:
        with deviations.of(query):
            assert await names(scene, query) == found
    assert not deviations, deviations.report


@pytest.mark.parametrize(
    ("query", "error"),
    [
        ("branches?sort=asc", "sort does not have a valid value"),
        ("tags?order_by=size", "order_by does not have a valid value"),
        ("tags?sort=name_asc", "sort does not have a valid value"),
    ],
)
async def test_other_orders_are_refused(scene: Scene, query: str, error: str) -> None:
    assert await names(scene, query) == {"error": error}
