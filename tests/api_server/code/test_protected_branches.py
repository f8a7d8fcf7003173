"""Protected branches: what they say, who manages them, and what a ref's protection is."""

import asyncio
import re

import attrs
import gitlab
import pytest
from hypothesis import given
from hypothesis import strategies as st

from api_server.code.protection import UNPROTECTED, Protection, protection_of, protections_of
from tests.support.forge import Forge


def _rule(body: dict, **changed: object) -> dict:
    level = {"id": body["id"], "user_id": None, "group_id": None}
    maintainers = {"access_level": 40, "access_level_description": "Maintainers"}
    return {
        "id": body["id"],
        "name": "main",
        "push_access_levels": [level | maintainers | {"deploy_key_id": None}],
        "merge_access_levels": [level | maintainers],
        "allow_force_push": False,
        "unprotect_access_levels": [],
        "code_owner_approval_required": False,
        "inherited": False,
    } | changed


async def test_a_branch_is_protected_shown_changed_and_unprotected(forge: Forge) -> None:
    alice = await forge.user("alice")
    project = await forge.project(alice)
    path = f"/projects/{project['id']}/protected_branches"
    made = await alice.api.post(path, {"name": "main"})
    assert (made.status, made.body) == (201, _rule(made.body))
    taken = await alice.api.post(path, {"name": "main"})
    assert (taken.status, taken.body) == (409, {"message": "Protected branch 'main' already exists"})
    wild = await alice.api.post(
        f"{path}?name=release%2F*&push_access_level=0&merge_access_level=30", {}, expect=201
    )
    assert wild.body["push_access_levels"][0]["access_level_description"] == "No one"
    assert wild.body["merge_access_levels"][0]["access_level_description"] == "Developers + Maintainers"
    listed = await alice.api.get(path)
    assert listed.body == [made.body, wild.body]
    assert (await alice.api.get(f"{path}?search=REL")).body == [wild.body]
    for encoded in ("release%2F*", "release%2F%2A"):
        assert (await alice.api.get(f"{path}/{encoded}")).body == wild.body
    changed = await alice.api.patch(
        f"{path}/main", {"allow_force_push": True, "allowed_to_push": [{"access_level": 60}]}, expect=200
    )
    assert changed.body["allow_force_push"] is True
    assert changed.body["push_access_levels"][0]["access_level_description"] == "Instance admins"
    assert changed.body["merge_access_levels"] == made.body["merge_access_levels"]
    assert (await alice.api.delete(f"{path}/release%2F%2A")).status == 204
    gone = await alice.api.get(f"{path}/release%2F%2A")
    assert (gone.status, gone.body) == (404, {"message": "404 Not found"})
    rows = await forge.database.rows(
        "SELECT event_type, details ->> 'custom_message' AS message FROM audit_events"
        " WHERE entity_type = 'Project' AND entity_id = %(id)s AND target_type = 'ProtectedBranch' ORDER BY id",
        id=project["id"],
    )
    assert [(row.event_type, row.message) for row in rows] == [
        (
            "protected_branch_created",
            "Added protected branch with [allowed to push: [Maintainers], allowed to merge: [Maintainers], "
            "allow force push: false, code owner approval required: false]",
        ),
        (
            "protected_branch_created",
            "Added protected branch with [allowed to push: [No one], allowed to merge: [Developers + Maintainers], "
            "allow force push: false, code owner approval required: false]",
        ),
        (
            "protected_branch_updated",
            "Changed allowed to push from [Maintainers] to [Instance admins]",
        ),
        ("protected_branch_updated", "Changed allow force push from false to true"),
        ("protected_branch_removed", "Unprotected branch"),
    ]


@pytest.mark.parametrize(
    ("wanted", "status", "body"),
    [
        ({}, 400, {"error": "name is missing"}),
        ({"name": ""}, 400, {"error": "name is empty"}),
        (
            {"name": "a", "push_access_level": 50},
            400,
            {"error": "push_access_level does not have a valid value"},
        ),
        ({"name": "a", "allow_force_push": "maybe"}, 400, {"error": "allow_force_push is invalid"}),
        (
            {"name": "a", "allowed_to_push": [{"access_level": 30}, {"access_level": 40}]},
            400,
            {"error": "allowed_to_push does not have a valid value"},
        ),
        (
            {"name": "a", "allowed_to_merge": [{"user_id": 1}]},
            400,
            {"error": "allowed_to_merge[user_id] is not supported by this service"},
        ),
        (
            {"name": "a", "allowed_to_push": [{"access_level": 40, "group_id": 1, "deploy_key_id": 2}]},
            400,
            {
                "error": "allowed_to_push[group_id], allowed_to_push[deploy_key_id] are not supported by this service"
            },
        ),
        (
            {"name": "a", "allowed_to_push": [{}]},
            400,
            {"error": "allowed_to_push does not have a valid value"},
        ),
        ({"name": "a" * 256}, 422, {"message": ["Name is too long (maximum is 255 characters)"]}),
    ],
)
async def test_a_rule_that_cannot_be_is_refused(forge: Forge, wanted: dict, status: int, body: dict) -> None:
    project = await forge.project()
    answer = await forge.root.post(f"/projects/{project['id']}/protected_branches", wanted)
    assert (answer.status, answer.body) == (status, body)


async def test_one_level_takes_the_place_of_another_as_clients_of_gitlab_write_it(forge: Forge) -> None:
    project = await forge.project()
    path = f"/projects/{project['id']}/protected_branches"
    made = (await forge.root.post(path, {"name": "a"})).body
    (old,) = made["push_access_levels"]
    gone = {"id": old["id"], "_destroy": True}
    for sent, level in (
        ([gone, {"access_level": 30}], 30),
        ([{"id": old["id"], "access_level": 60}], 60),
        ([], 60),
        ([gone], 0),
    ):
        changed = await forge.root.patch(f"{path}/a", {"allowed_to_push": sent})
        assert (changed.status, changed.body["push_access_levels"][0]["access_level"]) == (200, level)
        assert changed.body["merge_access_levels"] == made["merge_access_levels"]


async def test_maintainers_manage_protected_branches(forge: Forge) -> None:
    project = await forge.project()
    people = await forge.people(project["id"])
    path = f"/projects/{project['id']}/protected_branches"
    await forge.root.post(path, {"name": "main"})
    for name, person in people.items():
        answers = [
            await person.api.get(path),
            await person.api.get(f"{path}/main"),
            await person.api.post(path, {"name": name}),
            await person.api.patch(f"{path}/main", {}),
            await person.api.delete(f"{path}/main"),
        ]
        allowed = name in ("maintainer", "owner")
        refused = 404 if name == "stranger" else 403
        expected = [200, 200, 201, 200, 204] if allowed else [refused] * 5
        assert [answer.status for answer in answers] == expected, name
        if allowed:
            await forge.root.post(path, {"name": "main"})


async def test_of_several_rules_the_most_permissive_counts(forge: Forge) -> None:
    project = await forge.project()
    path = f"/projects/{project['id']}/protected_branches"
    for name, push, merge, force in (("*", 40, 0, False), ("rel*", 30, 60, True), ("x_y", 0, 0, False)):
        await forge.root.post(
            path,
            {"name": name, "push_access_level": push, "merge_access_level": merge, "allow_force_push": force},
        )
    found = await protections_of(forge.database, project["id"], ["main", "release", "x_y"])
    assert found == {
        "main": Protection(
            protected=True,
            push_levels=frozenset({40}),
            merge_levels=frozenset({0}),
            allow_force_push=False,
        ),
        "release": Protection(
            protected=True,
            push_levels=frozenset({30, 40}),
            merge_levels=frozenset({0, 60}),
            allow_force_push=True,
        ),
        "x_y": Protection(
            protected=True,
            push_levels=frozenset({0, 40}),
            merge_levels=frozenset({0}),
            allow_force_push=False,
        ),
    }
    other = await forge.project()
    assert await protection_of(forge.database, other["id"], "main") == UNPROTECTED


# level: who reaches it of developer, maintainer, owner, administrator
@pytest.mark.parametrize(
    ("levels", "reached"),
    [
        ({0}, (False, False, False, False)),
        ({30}, (True, True, True, True)),
        ({40}, (False, True, True, True)),
        ({60}, (False, False, False, True)),
        ({0, 40}, (False, True, True, True)),
        ({0, 60}, (False, False, False, True)),
    ],
)
def test_levels(levels: set[int], reached: tuple[bool, ...]) -> None:
    for attribute, ask in (("push_levels", Protection.may_push), ("merge_levels", Protection.may_merge)):
        protection = attrs.evolve(UNPROTECTED, protected=True, **{attribute: frozenset(levels)})
        asked = [
            ask(protection, 30),
            ask(protection, 40),
            ask(protection, 50),
            ask(protection, 50, admin=True),
        ]
        assert tuple(asked) == reached


def test_a_guest_pushes_nowhere_even_where_nothing_is_protected() -> None:
    assert not UNPROTECTED.may_push(20)
    assert not UNPROTECTED.may_merge(20)


_TEXT = st.text(alphabet="ab*%_\\./-", min_size=1, max_size=8)


@given(pairs=st.lists(st.tuples(_TEXT, _TEXT), min_size=1, max_size=30))
async def test_a_wildcard_stands_for_any_text_and_everything_else_for_itself(
    forge: Forge, pairs: list[tuple[str, str]]
) -> None:
    rows = await forge.database.rows(
        "SELECT wildcard_matches(pattern, name) AS matches"
        " FROM unnest(%(patterns)s::text[], %(names)s::text[]) AS pairs (pattern, name)",
        patterns=[pattern for pattern, _ in pairs],
        names=[name for _, name in pairs],
    )
    for (pattern, name), row in zip(pairs, rows, strict=True):
        expected = re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), name, re.DOTALL)
        assert row.matches == (expected is not None), (pattern, name)


async def test_python_gitlab_manages_protected_branches(forge: Forge) -> None:
    project = await forge.project()

    def use() -> None:
        with gitlab.Gitlab(forge.base, private_token=forge.root.token) as client:
            branches = client.projects.get(project["id"]).protectedbranches
            made = branches.create({"name": "release/*", "push_access_level": 0, "merge_access_level": 40})
            assert branches.get("release/*").push_access_levels[0]["access_level"] == 0
            made.allow_force_push = True
            made.save()
            assert [branch.allow_force_push for branch in branches.list(iterator=True)] == [True]
            branches.delete("release/*")
            assert branches.list() == []

    await asyncio.to_thread(use)
