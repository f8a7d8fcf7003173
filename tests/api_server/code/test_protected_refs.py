"""Protected branches and tags: their content, who manages them, and who may move the protected refs."""

import asyncio
import re
from pathlib import Path
from typing import Any

import attrs
import gitlab
import pytest
from hypothesis import given
from hypothesis import strategies as st

from api_server.code.protection import (
    UNPROTECTED,
    UNPROTECTED_TAG,
    Protection,
    TagProtection,
    protection_of,
    protections_of,
    tag_protections_of,
)
from api_server.web.routes import Role
from tests.support.forge import Answer, Forge, Person
from tests.support.git_client import Git, git_url


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


async def test_who_may_merge_makes_protected_branches_from_protected_ones_and_maintainers_delete_them(
    forge: Forge,
) -> None:
    project = await forge.project(initialize_with_readme=True)
    people, url = await forge.people(project["id"]), f"/projects/{project['id']}"
    for name, merge in (("release/*", Role.DEVELOPER), ("closed/*", Role.NO_ACCESS)):
        rule = {"name": name, "push_access_level": 0, "merge_access_level": int(merge)}
        await forge.root.post(f"{url}/protected_branches", rule, expect=201)
    change = {"branch": "side", "start_branch": "main", "commit_message": "x", "content": "x"}
    await people["developer"].api.post(f"{url}/repository/files/x", change, expect=201)

    async def refusal(role: str, method: str, branch: str, ref: str | None = None) -> str | None:
        path = f"{url}/repository/branches" + ("" if ref else f"/{branch.replace('/', '%2F')}")
        body = {"branch": branch, "ref": ref} if ref else None
        answer = await people[role].api.request(method, path, json=body)
        if answer.status == 403:
            return str(answer.body["message"]).removeprefix("403 Forbidden - ")
        assert answer.status in (201, 204), answer
        return None

    basis = "You can only use an existing protected branch ref as the basis of a new protected branch."
    creation = "You are not allowed to create protected branches on this project."
    deletion = (
        "You are not allowed to delete protected branches from this project. "
        "Only a project maintainer or owner can delete a protected branch."
    )
    assert await refusal("developer", "POST", "release/1", "side") == basis
    assert await refusal("developer", "POST", "release/1", "main") is None
    assert await refusal("owner", "POST", "closed/1", "main") == creation
    assert await refusal("developer", "DELETE", "release/1") == deletion
    assert await refusal("maintainer", "DELETE", "release/1") is None


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


# level: who is allowed of developer, maintainer, owner, administrator
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


MESSAGES = """
    SELECT event_type, target_details, details ->> 'custom_message' AS message FROM audit_events
    WHERE entity_type = 'Project' AND entity_id = %(id)s AND target_type = 'ProtectedTag' ORDER BY id
"""
NOT_TO_CREATE = "You are not allowed to create this tag as it is protected."


@attrs.frozen
class Scene:
    """A project in which Maintainers may create `v*`, Developers `nightly-*`, and nobody `frozen`."""

    forge: Forge
    id: int
    people: dict[str, Person]
    git: Git
    path: str

    @property
    def rules(self) -> str:
        return f"/projects/{self.id}/protected_tags"

    @property
    def tags(self) -> str:
        return f"/projects/{self.id}/repository/tags"

    async def tag(self, who: str, name: str) -> Answer:
        return await self.people[who].api.post(self.tags, {"tag_name": name, "ref": "main"})

    async def push(self, who: str, refspec: str) -> str:
        """Push; return git's messages, or "" if the push was accepted."""
        ran = await self.git.run("push", "--quiet", git_url(self.forge, self.path, self.people[who]), refspec)
        return ran.output if ran.code else ""


@pytest.fixture(scope="module")
async def scene(forge: Forge, tmp_path_factory: pytest.TempPathFactory) -> Scene:
    project = await forge.project()
    people = await forge.people(project["id"])
    git = Git(tmp_path_factory.mktemp("tags"))
    await git.init()
    await git.commit(README="one")
    made = Scene(forge, project["id"], people, git, project["path_with_namespace"])
    assert not await made.push("owner", "main")
    for name, level in (("v*", 40), ("nightly-*", 30), ("frozen", 0)):
        await forge.root.post(made.rules, {"name": name, "create_access_level": level}, expect=201)
    return made


async def test_a_rule_is_made_shown_and_removed(forge: Forge) -> None:
    project = await forge.project()
    path = f"/projects/{project['id']}/protected_tags"
    made = await forge.root.post(path, {"name": "release/*"})
    level = {"access_level": 40, "access_level_description": "Maintainers"}
    nobody = {"deploy_key_id": None, "user_id": None, "group_id": None}
    expected = {"name": "release/*", "create_access_levels": [{"id": 1} | level | nobody]}
    expected["create_access_levels"][0]["id"] = made.body["create_access_levels"][0]["id"]
    assert (made.status, made.body) == (201, expected)
    assert list(made.body["create_access_levels"][0]) == ["id", *level, *nobody]
    taken = await forge.root.post(path, {"name": "release/*"})
    assert (taken.status, taken.body) == (422, {"message": ["Name has already been taken"]})
    listed = await forge.root.post(path, {"name": "x", "allowed_to_create": [{"access_level": 30}]})
    assert (await forge.root.get(path)).body == [made.body, listed.body]
    assert (await forge.root.get(f"{path}/release%2F*")).body == made.body
    assert (await forge.root.delete(f"{path}/release%2F%2A")).status == 204
    gone = await forge.root.delete(f"{path}/release%2F%2A")
    assert (gone.status, gone.body) == (404, {"message": "404 Not found"})
    rows = await forge.database.rows(MESSAGES, id=project["id"])
    assert [(row.event_type, row.target_details, row.message) for row in rows] == [
        ("protected_tag_created", "release/*", "Added protected tag with [allowed to create: [Maintainers]]"),
        (
            "protected_tag_created",
            "x",
            "Added protected tag with [allowed to create: [Developers + Maintainers]]",
        ),
        ("protected_tag_deleted", "release/*", "Unprotected tag"),
    ]


@pytest.mark.parametrize(
    ("wanted", "status", "body"),
    [
        ({}, 400, {"error": "name is missing"}),
        ({"name": ""}, 400, {"error": "name is empty"}),
        (
            {"name": "a", "create_access_level": 50},
            400,
            {"error": "create_access_level does not have a valid value"},
        ),
        (
            {"name": "a", "create_access_level": 30, "allowed_to_create": [{"access_level": 30}]},
            400,
            {"error": "allowed_to_create does not have a valid value"},
        ),
        ({"name": "a" * 256}, 422, {"message": ["Name is too long (maximum is 255 characters)"]}),
    ],
)
async def test_a_rule_of_tags_that_cannot_be_is_refused(
    scene: Scene, wanted: Any, status: int, body: Any
) -> None:
    answer = await scene.forge.root.post(scene.rules, wanted)
    assert (answer.status, answer.body) == (status, body)


async def test_of_several_rules_of_tags_the_most_permissive_counts(forge: Forge) -> None:
    project = await forge.project()
    for name, level in (("*", 0), ("v*", 60), ("v1", 30)):
        await forge.root.post(
            f"/projects/{project['id']}/protected_tags", {"name": name, "create_access_level": level}
        )
    found = await tag_protections_of(forge.database, project["id"], ["x", "v2", "v1"])
    levels = {name: set(rules.create_levels) for name, rules in found.items()}
    assert levels == {"x": {0}, "v2": {0, 60}, "v1": {0, 30, 60}}
    reached = [
        [rules.may_create(30), rules.may_create(50), rules.may_create(50, admin=True)]
        for rules in found.values()
    ]
    assert reached == [[False] * 3, [False, False, True], [True] * 3]
    other = await forge.project()
    assert await tag_protections_of(forge.database, other["id"], ["v1"]) == {"v1": UNPROTECTED_TAG}
    assert not TagProtection(protected=True, create_levels=frozenset({0})).may_create(50, admin=True)


@pytest.mark.parametrize(
    ("who", "name", "may"),
    [
        ("developer", "api-free", True),
        ("developer", "nightly-1", True),
        ("developer", "v-api", False),
        ("maintainer", "v-api", True),
        ("owner", "frozen", False),
    ],
)
async def test_who_makes_a_tag(scene: Scene, who: str, name: str, may: bool) -> None:
    pushed = f"{name}.pushed" if name != "frozen" else name
    said = await scene.push(who, f"HEAD:refs/tags/{pushed}")
    made = await scene.tag(who, name)
    if may:
        assert (said, made.status) == ("", 201), made
        assert made.body["protected"] is (name != "api-free")
    else:
        assert NOT_TO_CREATE in said
        assert (made.status, made.body) == (403, {"message": f"403 Forbidden - {NOT_TO_CREATE}"})


async def test_a_protected_tag_is_neither_moved_nor_removed_by_a_push(scene: Scene) -> None:
    assert (await scene.tag("maintainer", "v-stays")).status == 201
    await scene.git.commit(README="two")
    moved = await scene.push("owner", "+HEAD:refs/tags/v-stays")
    assert "Protected tags cannot be updated." in moved
    removed = await scene.push("owner", ":refs/tags/v-stays")
    assert "You cannot delete a protected tag by a push; use the API." in removed
    refused = await scene.people["developer"].api.delete(f"{scene.tags}/v-stays")
    reason = "You don't have access to delete the tag"
    assert (refused.status, refused.body) == (403, {"message": f"403 Forbidden - {reason}"})
    assert (await scene.people["maintainer"].api.delete(f"{scene.tags}/v-stays")).status == 204


async def test_tags_say_whether_they_are_protected(scene: Scene) -> None:
    for name in ("shown-free", "v-shown"):
        assert (await scene.tag("owner", name)).status == 201
        shown = await scene.people["reporter"].api.get(f"{scene.tags}/{name}")
        assert shown.body["protected"] is (name == "v-shown")
    listed = await scene.people["reporter"].api.get(f"{scene.tags}?search=shown")
    assert [tag["protected"] for tag in listed.body] == [True, False]


async def test_python_gitlab_manages_protected_tags(scene: Scene) -> None:
    token = scene.people["maintainer"].token

    def use() -> None:
        with gitlab.Gitlab(scene.forge.base, private_token=token) as client:
            rules = client.projects.get(scene.id).protectedtags
            rules.create({"name": "lib-*", "create_access_level": gitlab.const.AccessLevel.DEVELOPER})
            assert rules.get("lib-*").create_access_levels[0]["access_level"] == 30
            assert "lib-*" in [rule.name for rule in rules.list(get_all=True)]
            rules.delete("lib-*")
            assert "lib-*" not in [rule.name for rule in rules.list(get_all=True)]

    await asyncio.to_thread(use)


CONFIG = """
build: {script: echo}
secret: {script: echo, rules: [{if: $SECRET}]}
"""


async def test_pipelines_of_protected_tags_are_protected(forge: Forge, tmp_path: Path) -> None:
    """They have the protected variables, and only people who may create the tag may start them."""
    developer = await forge.user("developer")
    project = await forge.project(members={Role.DEVELOPER: developer})
    url = f"/projects/{project['id']}"
    values = {"branch": "main", "commit_message": "CI [ci skip]", "content": CONFIG}
    assert (await forge.root.post(f"{url}/repository/files/.gitlab-ci.yml", values)).status == 201
    await forge.root.post(f"{url}/protected_tags", {"name": "v*"})
    await forge.root.post(f"{url}/variables", {"key": "SECRET", "value": "x", "protected": True})
    rows, runs = {}, {}
    for tag in ("v1", "free"):
        await forge.root.post(f"{url}/repository/tags", {"tag_name": tag, "ref": "main"}, expect=201)
        run = await forge.root.post(f"{url}/pipeline", {"ref": tag}, expect=201)
        runs[tag] = run.body["id"]
        rows[tag] = await forge.database.one(
            "SELECT pipelines.protected, bool_and(jobs.protected) AS jobs FROM pipelines"
            " JOIN jobs ON jobs.pipeline_id = pipelines.id WHERE pipelines.id = %(id)s GROUP BY pipelines.id",
            id=run.body["id"],
        )
    assert (rows["v1"].protected, rows["v1"].jobs) == (True, True)
    assert (rows["free"].protected, rows["free"].jobs) == (False, False)
    for tag, names, status in (("v1", {"build", "secret"}, 403), ("free", {"build"}, 201)):
        jobs = {job["name"]: job for job in (await forge.root.get(f"{url}/pipelines/{runs[tag]}/jobs")).body}
        assert set(jobs) == names
        assert (await developer.api.post(f"{url}/jobs/{jobs['build']['id']}/cancel")).status == status
    refused = await developer.api.post(f"{url}/pipeline", {"ref": "v1"})
    assert (refused.status, refused.body) == (
        400,
        {"message": {"base": ["You do not have sufficient permission to run a pipeline on 'v1'."]}},
    )
    assert (await developer.api.post(f"{url}/pipeline", {"ref": "free"})).status == 201
