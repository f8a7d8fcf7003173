"""Changing, closing, reopening and approving merge requests, through the API and by options of pushes."""

import asyncio
from pathlib import Path
from typing import Any

import attrs
import pytest

from api_server.git import commits as git_commits
from api_server.git import new_commits
from api_server.git.errors import TooManyFilesError
from api_server.merge_requests.changes import with_draft
from api_server.merge_requests.push_options import Options, read_options
from api_server.web.routes import Role
from tests.api_server.merge_requests.test_squash import over
from tests.support.deviations import Deviations
from tests.support.forge import Forge, Person
from tests.support.git_client import Git, git_url, push_files
from tests.support.large_trees import Plumbing, bomb, plumbing
from tests.support.merge_requests import commit, head_of, open_merge_request
from tests.support.raw_push import NO_COMMIT, pack_of, packet, send_push
from tests.support.waiting import until, until_somebody_waits


async def test_one_pair_of_branches_has_one_open_merge_request(
    alice: Person, project: dict[str, Any]
) -> None:
    first = await open_merge_request(alice, project)
    wanted = {"source_branch": "feature", "target_branch": "main", "title": "Again"}
    refusal = {"message": ["Another open merge request already exists for this source branch: !1"]}
    again = await alice.api.post(f"/projects/{project['id']}/merge_requests", wanted)
    assert (again.status, again.body) == (409, refusal)
    one = f"/projects/{project['id']}/merge_requests/{first['iid']}"
    assert (await alice.api.put(one, {"state_event": "close"})).body["state"] == "closed"
    second = await alice.api.post(f"/projects/{project['id']}/merge_requests", wanted)
    assert (second.status, second.body["iid"]) == (201, 2)
    reopened = await alice.api.put(one, {"state_event": "reopen"})
    refusal = {"message": ["Another open merge request already exists for this source branch: !2"]}
    assert (reopened.status, reopened.body) == (409, refusal)


async def test_what_is_sent_is_changed_and_the_rest_stays(alice: Person, project: dict[str, Any]) -> None:
    made = await open_merge_request(alice, project, description="Why", labels="a")
    one = f"/projects/{project['id']}/merge_requests/{made['iid']}"
    await commit(alice.api, project, "stable", start_branch="main")
    for wanted, changed in [
        ({}, {}),
        ({"title": "Other"}, {"title": "Other"}),
        ({"description": None}, {"description": ""}),
        ({"add_labels": ["c", "b"]}, {"labels": ["a", "b", "c"]}),
        ({"remove_labels": "a,c"}, {"labels": ["b"]}),
        ({"labels": ""}, {"labels": []}),
        ({"remove_source_branch": True}, {"force_remove_source_branch": True}),
    ]:
        answer = await alice.api.put(one, wanted)
        expected = made | changed | {"updated_at": answer.body["updated_at"]}
        assert (answer.status, answer.body) == (200, expected), wanted
        made = answer.body
    answer = await alice.api.put(one, {"target_branch": "stable"})
    assert (answer.body["target_branch"], answer.body["detailed_merge_status"]) == ("stable", "mergeable")
    assert answer.body["diff_refs"]["start_sha"] == await head_of(alice.api, project, "stable")
    assert (await alice.api.put(one, {"target_branch": "feature"})).status == 422
    assert (await alice.api.put(one, {"target_branch": "gone"})).status == 400
    assert (await alice.api.put(one, {"state_event": "open"})).status == 400


async def test_closing_and_reopening_take_the_branches_as_they_are_then(
    alice: Person, project: dict[str, Any]
) -> None:
    made = await open_merge_request(alice, project)
    one = f"/projects/{project['id']}/merge_requests/{made['iid']}"
    for _ in range(2):  # the second time changes nothing
        closed = (await alice.api.put(one, {"state_event": "close"})).body
    assert (closed["state"], closed["closed_by"]["id"], closed["detailed_merge_status"]) == (
        "closed",
        alice.id,
        "not_open",
    )
    head = await commit(alice.api, project, "feature")
    assert (await alice.api.get(one)).body["sha"] == made["sha"]
    reopened = (await alice.api.put(one, {"state_event": "reopen"})).body
    assert (reopened["state"], reopened["sha"], reopened["closed_by"]) == ("opened", head, None)
    assert (await alice.api.put(one, {"state_event": "reopen"})).status == 200


async def test_approvals_are_one_for_each_user_and_can_be_taken_back(
    forge: Forge, alice: Person, project: dict[str, Any]
) -> None:
    people = await forge.people(project["id"])
    made = await open_merge_request(alice, project)
    one = f"/projects/{project['id']}/merge_requests/{made['iid']}"
    developer = people["developer"]
    refused = await developer.api.post(f"{one}/approve", {"sha": "0" * 40})
    text = f"SHA does not match HEAD of source branch: {made['sha']}"
    assert (refused.status, refused.body) == (409, {"message": text})
    for _ in range(2):
        approved = await developer.api.post(f"{one}/approve", {"sha": made["sha"]})
    assert approved.status == 201
    assert approved.body["user_has_approved"]
    assert not approved.body["user_can_approve"]
    assert [entry["user"]["id"] for entry in approved.body["approved_by"]] == [developer.id]
    seen = (await people["reporter"].api.get(f"{one}/approvals")).body
    assert (seen["user_has_approved"], seen["user_can_approve"]) == (False, False)
    assert (await developer.api.post(f"{one}/unapprove")).body["approved_by"] == []
    missing = await developer.api.post(f"{one}/unapprove")
    assert (missing.status, missing.body) == (404, {"message": "404 Not found"})
    await alice.api.put(one, {"state_event": "close"})
    assert (await developer.api.post(f"{one}/approve")).status == 422


LOCK_PROJECT = "SELECT projects.id FROM projects WHERE projects.id = %(id)s FOR UPDATE"
LOCK = "SELECT merge_requests.id FROM merge_requests WHERE merge_requests.id = %(id)s FOR UPDATE"


async def test_labels_that_two_add_at_the_same_time_are_both_there(
    forge: Forge, alice: Person, project: dict[str, Any]
) -> None:
    made = await open_merge_request(alice, project, labels="a")
    one = f"/projects/{project['id']}/merge_requests/{made['iid']}"
    async with forge.database.transaction() as transaction:
        await transaction.run(LOCK_PROJECT, id=project["id"])
        added = asyncio.create_task(alice.api.put(one, {"add_labels": "b"}))
        await until_somebody_waits(forge.database)
        set_labels = "UPDATE merge_requests SET labels = '{a,c}' WHERE id = %(id)s"
        await transaction.run(set_labels, id=made["id"])
    assert (await added).body["labels"] == ["a", "b", "c"]


async def test_a_merge_request_has_a_most_of_labels(
    forge: Forge, alice: Person, project: dict[str, Any]
) -> None:
    """One that has more since before there was a limit can be changed, but does not get more."""
    most, names = 200, [f"{number:03}" for number in range(300)]
    refused = {"message": {"labels": ["total must be less than or equal to 200"]}}
    own = f"/projects/{project['id']}/merge_requests"
    made = await open_merge_request(alice, project, labels=names[:most])
    one = f"{own}/{made['iid']}"
    assert made["labels"] == names[:most]
    branches = {"source_branch": "main", "target_branch": "feature", "title": "Back"}
    tried = [
        await alice.api.post(own, branches | {"labels": names[: most + 1]}),
        await alice.api.put(one, {"labels": ",".join(names[: most + 1])}),
        await alice.api.put(one, {"add_labels": "one more"}),
    ]
    assert [(answer.status, answer.body) for answer in tried] == [(400, refused)] * 3
    changed = await alice.api.put(one, {"add_labels": "one more", "remove_labels": names[0]}, expect=200)
    assert changed.body["labels"] == [*names[1:most], "one more"]
    more = "UPDATE merge_requests SET labels = %(names)s WHERE id = %(id)s"
    await forge.execute(more, names=names, id=made["id"])
    answer = await alice.api.put(one, {"add_labels": "one more"})
    assert (answer.status, answer.body) == (400, refused)
    for change, labels in (
        ({"title": "Other"}, names),
        ({"add_labels": "one more", "remove_labels": names[0]}, [*names[1:], "one more"]),
        ({"remove_labels": "001"}, [*names[2:], "one more"]),
        ({"labels": names[:most]}, names[:most]),
    ):
        assert (await alice.api.put(one, change, expect=200)).body["labels"] == labels, change


async def test_a_head_that_moves_while_somebody_approves_is_not_approved(
    forge: Forge, alice: Person, project: dict[str, Any]
) -> None:
    made = await open_merge_request(alice, project)
    one = f"/projects/{project['id']}/merge_requests/{made['iid']}"
    moved = "0" * 40
    async with forge.database.transaction() as transaction:
        await transaction.run(LOCK, id=made["id"])
        approved = asyncio.create_task(alice.api.post(f"{one}/approve", {"sha": made["sha"]}))
        await until_somebody_waits(forge.database)
        set_head = "UPDATE merge_requests SET head_sha = %(sha)s WHERE id = %(id)s"
        await transaction.run(set_head, id=made["id"], sha=moved)
    refusal = {"message": f"SHA does not match HEAD of source branch: {moved}"}
    assert ((await approved).status, (await approved).body) == (409, refusal)


async def test_what_is_deleted_while_it_is_changed_is_404(
    forge: Forge, alice: Person, project: dict[str, Any]
) -> None:
    made = await open_merge_request(alice, project)
    one = f"/projects/{project['id']}/merge_requests/{made['iid']}"
    async with forge.database.transaction() as transaction:
        await transaction.run(LOCK, id=made["id"])
        calls = [
            asyncio.create_task(alice.api.post(f"{one}/approve")),
            asyncio.create_task(alice.api.put(one, {"title": "Other"})),
        ]
        await until_somebody_waits(forge.database, count=2)
        await transaction.run("DELETE FROM merge_requests WHERE id = %(id)s", id=made["id"])
    for answer in await asyncio.gather(*calls):
        assert (answer.status, answer.body) == (404, {"message": "404 Not found"})


#: `git diff --full-index | git patch-id --stable` of a new file `a.txt` with the lines `one` and `two`.
PATCH_ID = "3599a98132acb49b44710df228135a3172c9c045"


async def test_files_are_counted_and_the_patch_has_gits_id(
    forge: Forge, alice: Person, project: dict[str, Any]
) -> None:
    await commit(alice.api, project, "counted", "a.txt", start_branch="main", content="one\ntwo\n")
    new = {"source_branch": "counted", "target_branch": "main", "title": "Count"}
    opened = (await alice.api.post(f"/projects/{project['id']}/merge_requests", new)).body
    url = f"/projects/{project['id']}/merge_requests/{opened['iid']}/versions"

    async def sizes() -> list[tuple[str, str]]:
        shown = (await alice.api.get(url)).body
        for version in shown:
            alone = (await alice.api.get(f"{url}/{version['id']}")).body
            assert {name: alone[name] for name in version} == version
        return [(version["real_size"], version["patch_id_sha"]) for version in shown]

    assert await sizes() == [("1", PATCH_ID)]
    await commit(alice.api, project, "counted", "bin", content="AAEC", encoding="base64")
    (second, patch_id), first = await sizes()
    assert (second, first) == ("2", ("1", PATCH_ID))
    assert patch_id != PATCH_ID
    with forge.changed_settings(diff_max_files=1):
        await commit(alice.api, project, "counted", "more")
        assert [size for size, _ in await sizes()] == ["1+", "2", "1"]


async def test_the_same_change_on_another_commit_has_the_same_id(
    alice: Person, project: dict[str, Any]
) -> None:
    await commit(alice.api, project, "one", "same", start_branch="main", content="one\n")
    await commit(alice.api, project, "main")
    await commit(alice.api, project, "other", "same", start_branch="main", content="one\n")
    ids = []
    for branch in ("one", "other"):
        new = {"source_branch": branch, "target_branch": "main", "title": "Same"}
        opened = (await alice.api.post(f"/projects/{project['id']}/merge_requests", new)).body
        url = f"/projects/{project['id']}/merge_requests/{opened['iid']}/versions"
        ids += [version["patch_id_sha"] for version in (await alice.api.get(url)).body]
    assert ids[0] == ids[1]


#: A million files: more than are merged here, and few enough that a merge of them would end.
LEVELS = 6


@attrs.frozen
class Pushed:
    """A project of Alice's; `commits` are the heads of its branches."""

    url: str
    commits: dict[str, str]


async def pushed(forge: Forge, alice: Person, made: Plumbing, trees: dict[str, str]) -> Pushed:
    """Push branches with these trees on top of a first commit, whose tree is the one with that name, or empty."""
    project = await forge.project(alice)
    first = made.commit(trees.pop("first", made.tree({})))
    commits = {name: made.commit(tree, first) for name, tree in trees.items()}
    address = git_url(forge, project["path_with_namespace"], alice)
    for name, sha in commits.items():
        await made.git("push", "--quiet", address, f"{sha}:refs/heads/{name}")
    return Pushed(f"/projects/{project['id']}", commits)


@pytest.mark.parametrize("where", ["first", "main", "feature"])
async def test_what_has_too_many_files_is_merged_by_hand(
    forge: Forge, alice: Person, tmp_path: Path, where: str
) -> None:
    made = await plumbing(tmp_path)
    entries = {"first": {"a": ("100644", made.blob())}}
    for name in ("main", "feature"):
        entries[name] = entries["first"] | {name: ("100644", made.blob(name.encode()))}
    entries[where] = entries[where] | {"many": ("040000", bomb(made, LEVELS))}
    project = await pushed(forge, alice, made, {name: made.tree(one) for name, one in entries.items()})
    wanted = {"source_branch": "feature", "target_branch": "main", "title": "Large"}
    opened = await alice.api.post(f"{project.url}/merge_requests", wanted)
    assert (opened.status, opened.body["detailed_merge_status"]) == (201, "conflict")
    one = f"{project.url}/merge_requests/1"
    assert (await alice.api.put(f"{one}/merge")).status == 422
    assert (await alice.api.get(f"{one}/merge_ref")).status == 400
    assert (await alice.api.put(f"{one}/rebase")).status == 202
    error = (await over(alice.api, one))["merge_error"]
    assert error == "Rebase failed: Commits with more than 300000 files and folders are not rebased."


async def test_a_commit_in_between_with_too_many_files_is_not_rebased(
    forge: Forge, alice: Person, tmp_path: Path
) -> None:
    made = await plumbing(tmp_path)
    small = made.tree({"a": ("100644", made.blob())})
    project = await pushed(forge, alice, made, {"main": small})
    repository = forge.repository(int(project.url.rpartition("/")[2]))
    first = str(repository[project.commits["main"]].parent_ids[0])
    head = made.commit(small, made.commit(bomb(made, LEVELS), first))
    shown = (await alice.api.get(project.url)).body
    await made.git(
        "push", "--quiet", git_url(forge, shown["path_with_namespace"], alice), f"{head}:refs/heads/a"
    )
    with pytest.raises(TooManyFilesError):
        await new_commits.rebase(repository, head, first, git_commits.Person("Alice", alice.email, 0))


async def test_an_open_one_gets_too_many_files_by_a_push(forge: Forge, alice: Person, tmp_path: Path) -> None:
    made = await plumbing(tmp_path)
    trees = {name: made.tree({name: ("100644", made.blob())}) for name in ("main", "feature")}
    project = await pushed(forge, alice, made, trees)
    wanted = {"source_branch": "feature", "target_branch": "main", "title": "Large"}
    opened: dict[str, Any] = (await alice.api.post(f"{project.url}/merge_requests", wanted)).body
    assert opened["detailed_merge_status"] == "mergeable"
    head = made.commit(bomb(made, LEVELS), project.commits["feature"])
    shown = (await alice.api.get(project.url)).body
    address = git_url(forge, shown["path_with_namespace"], alice)
    await made.git("push", "--quiet", address, f"{head}:refs/heads/feature")
    shown = (await alice.api.get(f"{project.url}/merge_requests/1")).body
    assert (shown["sha"], shown["detailed_merge_status"]) == (head, "conflict")


#: (options of a push, their meaning).
READ: list[tuple[list[str], Options]] = [
    ([], Options()),
    (["ci.skip", "create", "merge_request", "x.create"], Options()),
    (["merge_request.create"], Options({"create": "true"})),
    (["mr.create", "mr.draft=false"], Options({"create": "true", "draft": "false"})),
    (["merge_request.title=a=b", "merge_request.title=c.d"], Options({"title": "c.d"})),
    (["merge_request.title="], Options({"title": "true"})),
    ([r"merge_request.description=a\nb"], Options({"description": "a\nb"})),
    (["merge_request.label=a", "mr.label=b"], Options(lists={"label": ["a", "b"]})),
    (["merge_request.label=a"] * 1000, Options(lists={"label": ["a"] * 200})),
    (["merge_request.milestone=1.0", "mr.reviewer=x"], Options(unknown=["milestone", "reviewer"])),
]


@pytest.mark.parametrize(("options", "meaning"), READ)
def test_options_are_read(options: list[str], meaning: Options) -> None:
    assert read_options(options) == meaning
    assert bool(meaning) == (meaning != Options())


@pytest.mark.parametrize(
    ("title", "draft", "expected"),
    [
        ("A", True, "Draft: A"),
        ("Draft: A", True, "Draft: A"),
        ("[draft] Draft: A", False, "A"),
        ("A", False, "A"),
    ],
)
def test_titles_become_drafts_and_ready(title: str, draft: bool, expected: str) -> None:
    assert with_draft(title, draft=draft) == expected


@attrs.frozen
class Scene:
    forge: Forge
    alice: Person
    bob: Person
    project: dict[str, Any]
    git: Git

    @property
    def url(self) -> str:
        return f"/projects/{self.project['id']}/merge_requests"

    async def push(
        self, branch: str, *options: str, message: str = "Change", by: Person | None = None
    ) -> str:
        """Push another commit; return git's output without its own lines."""
        await self.git("checkout", "--quiet", "-B", branch)
        await self.git.commit_files({branch: message}, message)
        arguments = [argument for option in options for argument in ("-o", option)]
        remote = git_url(self.forge, self.project["path_with_namespace"], by or self.bob)
        printed = await self.git("push", *arguments, remote, f"HEAD:refs/heads/{branch}")
        lines = [line.removeprefix("remote:").strip() for line in printed.splitlines() if "remote:" in line]
        return "\n".join(line for line in lines if line)

    async def of(self, branch: str) -> list[dict[str, Any]]:
        return list((await self.bob.api.get(f"{self.url}?source_branch={branch}")).body)

    def viewed(self, branch: str, iid: int) -> str:
        page = f"{self.forge.base}/{self.project['path_with_namespace']}/-/merge_requests/{iid}"
        return f"View merge request for {branch}:\n{page}"


@pytest.fixture(scope="module")
async def scene(forge: Forge, tmp_path_factory: pytest.TempPathFactory) -> Scene:
    alice, bob = await forge.user("alice"), await forge.user("bob")
    project = await forge.project(alice, members={Role.DEVELOPER: bob})
    folder = tmp_path_factory.mktemp("push-options") / "work"
    await push_files(forge, folder, project, alice, {"README.md": "1"})
    git = Git(folder)
    remote = git_url(forge, project["path_with_namespace"], alice)
    await git("push", "--quiet", remote, "HEAD:refs/heads/stable")
    return Scene(forge, alice, bob, project, git)


async def test_a_merge_request_is_made_as_the_options_say(scene: Scene) -> None:
    told = await scene.push(
        "one",
        "merge_request.create",
        "merge_request.target=stable",
        "merge_request.title=A title, with = and é",
        r"merge_request.description=First\nsecond",
        "merge_request.draft",
        "merge_request.label=bug",
        "merge_request.label=ux",
        f"merge_request.assign={scene.alice.username}",
        "merge_request.remove_source_branch",
        "merge_request.squash=true",
    )
    (made,) = await scene.of("one")
    assert told == scene.viewed("one", made["iid"])
    shown = {
        "author": made["author"]["username"],
        "assignees": [user["username"] for user in made["assignees"]],
        **{key: made[key] for key in ("title", "description", "draft", "labels", "target_branch", "squash")},
        "force_remove_source_branch": made["force_remove_source_branch"],
        "sha": made["sha"],
    }
    assert shown == {
        "author": scene.bob.username,
        "assignees": [scene.bob.username, scene.alice.username],
        "title": "Draft: A title, with = and é",
        "description": "First\nsecond",
        "draft": True,
        "labels": ["bug", "ux"],
        "target_branch": "stable",
        "squash": True,
        "force_remove_source_branch": True,
        "sha": await scene.git("rev-parse", "HEAD"),
    }


async def test_the_next_push_changes_it(scene: Scene) -> None:
    await scene.push("two", "merge_request.create", "merge_request.label=a")
    told = await scene.push(
        "two",
        "merge_request.create",
        "merge_request.title=Another",
        "merge_request.draft",
        "merge_request.label=b",
        "merge_request.unlabel=a",
        f"merge_request.assign={scene.alice.id}",
        f"merge_request.unassign=@{scene.bob.username.upper()}",
        "merge_request.target=stable",
    )
    (made,) = await scene.of("two")
    assert told == scene.viewed("two", made["iid"])
    assert (made["title"], made["labels"], made["target_branch"]) == ("Draft: Another", ["b"], "stable")
    assert [user["username"] for user in made["assignees"]] == [scene.alice.username]
    await scene.push("two", "merge_request.draft=false")
    (made,) = await scene.of("two")
    assert (made["title"], made["description"], made["labels"]) == ("Another", "", ["b"])


#: (messages of the commits of a branch, title and description).
PROPOSED = [
    (["Only one\n\nWith a text\nof two lines"], "Only one", "With a text\nof two lines"),
    (["Only one"], "Only one", ""),
    (["First", "Second\n\nWith a text", "Third\n\nToo"], "Second", "With a text"),
    (["First", "Second"], "My topic branch2", ""),
]


async def test_the_title_is_that_of_a_commit_or_the_branch(scene: Scene) -> None:
    deviations = Deviations()
    for number, (messages, title, description) in enumerate(PROPOSED):
        name = f"my-topic_branch{number - 1}"
        await scene.git("checkout", "--quiet", "--detach", "main")
        for message in messages[:-1]:
            await scene.git.commit_files({f"{name}-{message[:3]}": message}, message)
        await scene.push(name, "mr.create", message=messages[-1])
        (made,) = await scene.of(name)
        if (made["title"], made["description"]) != (title, description):
            deviations.append(f"{messages}: {made['title']!r}, {made['description']!r}")
    assert not deviations, deviations.report


#: (options with a push of a new branch, the warning): no merge request is created.
WARNED = [
    (
        ["merge_request.title=A"],
        "{0}: A merge_request.create push option is required to create a merge request.",
    ),
    (["merge_request.create", "merge_request.target=nowhere"], "Target branch {1}:nowhere does not exist"),
    (
        ["merge_request.create", "merge_request.target_project=a/b"],
        "merge_request.target_project has to be the project itself",
    ),
    (["merge_request.create", "merge_request.assign=nobody-at-all"], "{0}: There is no user nobody-at-all."),
    (
        ["merge_request.create", f"merge_request.title={'x' * 256}"],
        "{0}: Title is too long (maximum is 255 characters).",
    ),
    (
        ["merge_request.create", f"merge_request.label={','.join(map(str, range(201)))}"],
        "{0}: Labels total must be less than or equal to 200.",
    ),
    (["merge_request.create=maybe"], "{0}: The option merge_request.create is neither true nor false."),
]


async def test_what_cannot_be_done_is_told_and_the_push_is_taken(scene: Scene) -> None:
    path = scene.project["path_with_namespace"]
    deviations = Deviations()
    for number, (options, words) in enumerate(WARNED):
        name = f"warned-{number}"
        told = await scene.push(name, *options)
        expected = f"WARNINGS:\nError encountered with push options: {words.format(name, path)}"
        if told != expected or await scene.of(name):
            deviations.append(f"{options}: {told!r}")
    assert not deviations, deviations.report


async def test_unknown_options_are_named_and_the_others_carried_out(scene: Scene) -> None:
    told = await scene.push("three", "merge_request.create", "merge_request.milestone=1.0")
    (made,) = await scene.of("three")
    unsupported = "Error encountered with push options: merge_request.milestone is not supported"
    assert told == f"{scene.viewed('three', made['iid'])}\nWARNINGS:\n{unsupported}"


async def test_a_push_of_the_default_branch_makes_none(scene: Scene) -> None:
    told = await scene.push("main", "merge_request.create", by=scene.alice)
    assert told.endswith("No branch was pushed but the default one")
    await scene.git("branch", "--force", "stable")


async def test_it_is_merged_when_nothing_stands_in_the_way(scene: Scene) -> None:
    """It needs the right to merge into the target: otherwise the push is accepted, with a warning."""
    told = await scene.push("four", "merge_request.create", "merge_request.auto_merge", by=scene.alice)
    (made,) = await scene.of("four")
    assert told == scene.viewed("four", made["iid"])
    await until(lambda: scene.of("four&state=merged"))  # when it is known that the push creates no pipeline
    told = await scene.push("five", "merge_request.create", "merge_request.merge_when_pipeline_succeeds")
    (made,) = await scene.of("five")
    assert (made["state"], "WARNINGS:" in told) == ("opened", True)


async def test_more_branches_than_ten_get_none(scene: Scene) -> None:
    remote = git_url(scene.forge, scene.project["path_with_namespace"], scene.bob)
    await scene.git.commit_files({"many": "many"})
    many = [f"HEAD:refs/heads/many-{number}" for number in range(11)]
    printed = await scene.git("push", "-o", "merge_request.create", remote, *many)
    assert "Too many branches pushed (11 were pushed, limit is 10)" in printed
    assert await scene.of("many-0") == []


async def test_a_client_without_a_side_band_gets_its_report_alone(scene: Scene) -> None:
    sha = await scene.git.commit_files({"old-client": "1"})
    head = f"{NO_COMMIT} {sha} refs/heads/old-client\0report-status push-options".encode()
    body = (
        packet(head) + b"0000" + packet(b"merge_request.create") + b"0000" + await pack_of(scene.git, "HEAD")
    )
    told = await send_push(scene.forge, scene.project["path_with_namespace"], scene.bob, body)
    assert told.text == "000eunpack ok\n001dok refs/heads/old-client\n0000"
    assert len(await scene.of("old-client")) == 1
