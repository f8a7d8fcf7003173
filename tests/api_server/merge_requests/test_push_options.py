"""`git push -o merge_request.*`: what is made and changed, and what the user reads of it."""

from typing import Any

import attrs
import pytest

from api_server.merge_requests.changes import with_draft
from api_server.merge_requests.push_options import Options, read_options
from api_server.web.routes import Role
from tests.support.ci import eventually
from tests.support.deviations import Deviations
from tests.support.forge import Forge, Person
from tests.support.git_client import Git, git_url, push_files
from tests.support.raw_push import NO_COMMIT, pack_of, packet, send_push

#: (options of a push, what they mean).
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
        """Pushes another commit; what git printed, without its own lines."""
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


#: (options beside a push of a new branch, what the user reads of them): nothing is made.
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
    """Merging is for those whom the target's protection lets: the push stays, and says so to others."""
    told = await scene.push("four", "merge_request.create", "merge_request.auto_merge", by=scene.alice)
    (made,) = await scene.of("four")
    assert told == scene.viewed("four", made["iid"])
    await eventually(
        lambda: scene.of("four&state=merged")
    )  # when it is known that the push makes no pipeline
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
