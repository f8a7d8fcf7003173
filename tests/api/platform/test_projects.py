"""Projects: life cycle, what is shown of them, and to whom."""

from tests.support.forge import Forge


async def test_archiving_and_unarchiving(forge: Forge) -> None:
    alice = await forge.user("alice")
    project = await forge.project(alice)
    for action, archived in (("archive", True), ("unarchive", False)):
        answer = await alice.api.post(f"/projects/{project['id']}/{action}")
        assert answer.status == 201
        assert answer.body == project | {"archived": archived, "updated_at": answer.body["updated_at"]}
