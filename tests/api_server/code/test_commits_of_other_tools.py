"""Commits that a push brings in another encoding, and with a date as old tools wrote it: everywhere the same text."""

import subprocess
from typing import Any

from tests.support.forge import Forge, Person
from tests.support.merge_requests import head_of

RAW = (
    b"tree %s\nparent %s\nauthor J\xfcrgen <j\xfc@example.org>1700000000 +0100\n"
    b"committer J\xfcrgen <j\xfc@example.org>1700000000 +0100\nencoding ISO-8859-1\n\nGr\xfc\xdfe\n"
)
TEXT = {
    "title": "Grüße",
    "message": "Grüße\n",
    "author_name": "Jürgen",
    "author_email": "jü@example.org",
    "authored_date": "2023-11-14T23:13:20.000+01:00",
}


async def test_a_commit_in_latin_1_is_shown_and_picked_as_text(
    forge: Forge, alice: Person, project: dict[str, Any]
) -> None:
    git, url = project["git"], project["url"]
    base = await git("rev-parse", "side^")
    raw = RAW % ((await git("rev-parse", "side^{tree}")).encode(), base.encode())
    sha = (
        subprocess.run(
            ["git", "hash-object", "-t", "commit", "-w", "--stdin", "--literally"],
            cwd=git.folder,
            input=raw,
            stdout=subprocess.PIPE,
            check=True,
        )
        .stdout.decode()
        .strip()
    )
    await git("push", "--quiet", project["remote"], f"{sha}:refs/heads/latin", f"{base}:refs/heads/target")
    picked = await alice.api.post(f"{url}/commits/{sha}/cherry_pick", {"branch": "target"}, expect=201)
    shown = [
        (await alice.api.get(f"{url}/commits/{sha}")).body,
        (await alice.api.get(f"{url}/commits?ref_name=latin")).body[0],
        (await alice.api.get(f"{url}/branches/latin")).body["commit"],
        picked.body,
    ]
    told = [{key: commit[key] for key in TEXT} for commit in shown]
    again = TEXT | {"message": f"Grüße\n\n(cherry picked from commit {sha})"}
    assert told == [TEXT, TEXT, TEXT, again]
    assert picked.body["id"] == await head_of(alice.api, project, "target")
    async with forge.session.get(
        f"{forge.base}/api/v4{url}/commits?ref_name=latin&author=J%C3%BCrgen",
        headers={"PRIVATE-TOKEN": alice.token},
    ) as answer:
        assert [commit["id"] for commit in await answer.json()] == [sha]
