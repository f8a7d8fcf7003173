"""A push of several refs with real git: the verdict on one is not that on the others, but with `--atomic`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest

from api_server.code.ref_queries import MovedProject
from api_server.code.refs import REF_LISTENERS
from api_server.git import receive_pack
from api_server.git.received_push import RefUpdate
from api_server.git.ref_moves import set_internal_ref
from api_server.git.ref_names import NO_COMMIT
from api_server.state.database import Transaction
from api_server.web.context import SERVICES
from api_server.web.routes import Role
from tests.api_server.code.raw_push import commands, pack_of, send_push
from tests.support.deviations import Deviations
from tests.support.forge import Forge, Person
from tests.support.git_client import Git, git_url, push_files

#: What refuses one ref: (the local side of the refspec, the ref, words in its line of the report).
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
    """bob is a Developer in alice's project: `main` and tags `v*` are protected from him, `steady` from force."""

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
    """As tools for moving repositories make them: `git clone --mirror`, and later `git push --mirror`."""
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
    """A protected tag that stands already where a push wants it to be was not put there by it: no pipeline follows."""
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
