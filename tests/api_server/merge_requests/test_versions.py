"""Versions of merge requests say how many files they change, and what they have in common (`git patch-id`)."""

from typing import Any

from tests.support.forge import Forge, Person
from tests.support.merge_requests import commit

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
