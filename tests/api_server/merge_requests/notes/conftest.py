"""A public project with a merge request that people of all roles discuss."""

from typing import Any

import attrs
import pytest

from api_server.web.routes import Role
from tests.support.forge import Answer, Forge, Person
from tests.support.merge_requests import commit, head_of, new_project

#: The file on `main` and on the branch: lines 2 and 3 are changed, 8 is removed, 11 is added.
BEFORE = "".join(f"line {number}\n" for number in range(1, 11))
AFTER = BEFORE.replace("line 2\nline 3\n", "second\nthird\n").replace("line 8\n", "") + "line 11\n"


@attrs.frozen
class Talk:
    """The project, its merge request, and people by their roles there. `author` has created the merge request."""

    project: dict[str, Any]
    url: str
    base_sha: str
    head_sha: str
    owner: Person
    maintainer: Person
    developer: Person
    reporter: Person
    guest: Person
    stranger: Person
    author: Person

    async def say(self, person: Person, text: str = "Well", **values: Any) -> dict[str, Any]:
        return _made(await person.api.post(f"{self.url}/notes", {"body": text, **values}))

    async def discuss(self, person: Person, text: str = "Why?", **values: Any) -> dict[str, Any]:
        return _made(await person.api.post(f"{self.url}/discussions", {"body": text, **values}))

    async def reply(self, person: Person, discussion_id: str, text: str = "Because") -> dict[str, Any]:
        return _made(await person.api.post(f"{self.url}/discussions/{discussion_id}/notes", {"body": text}))

    def place(self, **values: Any) -> dict[str, Any]:
        """Return a position in the file that the merge request changes."""
        shas = {"base_sha": self.base_sha, "start_sha": self.base_sha, "head_sha": self.head_sha}
        return shas | {"position_type": "text", "old_path": "app.py", "new_path": "app.py"} | values


def _made(answer: Answer) -> dict[str, Any]:
    assert answer.status == 201, answer
    return dict(answer.body)


@pytest.fixture(scope="package")
async def talk(forge: Forge) -> Talk:
    owner, author = await forge.user("owner"), await forge.user("author")
    project = await new_project(forge, owner, visibility="public")
    people = await forge.people(project["id"])
    await forge.member("projects", project["id"], author, Role.DEVELOPER)
    await commit(owner.api, project, "main", "app.py", content=BEFORE)
    await commit(owner.api, project, "main", "old.py", content=BEFORE)
    url = f"/projects/{project['id']}"
    actions = [
        {"action": "update", "file_path": "app.py", "content": AFTER},
        {"action": "create", "file_path": "new.py", "content": "one\ntwo"},
        {"action": "move", "file_path": "moved.py", "previous_path": "old.py", "content": BEFORE},
    ]
    wanted = {"branch": "feature", "start_branch": "main", "commit_message": "Change", "actions": actions}
    _made(await author.api.post(f"{url}/repository/commits", wanted))
    branches = {"source_branch": "feature", "target_branch": "main", "title": "A feature"}
    opened = _made(await author.api.post(f"{url}/merge_requests", branches))
    return Talk(
        project=project,
        url=f"{url}/merge_requests/{opened['iid']}",
        base_sha=await head_of(owner.api, project, "main"),
        head_sha=opened["sha"],
        owner=owner,
        maintainer=people["maintainer"],
        developer=people["developer"],
        reporter=people["reporter"],
        guest=people["guest"],
        stranger=people["stranger"],
        author=author,
    )
