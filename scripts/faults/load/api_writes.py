"""What programs write through the API: branches, files, commits, variables, users, and whole pages that they read."""

import itertools
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from scripts.faults.ground import OWNER, Ground
from scripts.faults.load import Present
from scripts.faults.load.git import mirror_of, subjects

PROJECT = "app"
APP = f"/projects/{OWNER}%2F{PROJECT}"
FILE_BRANCH = "files"


class ApiWrites:
    """One of each after the other."""

    rest = 0.05
    pulse = ("branch", "file", "commit", "variable", "own write", "user", "read")

    def __init__(self, ground: Ground, scratch: Path) -> None:
        self._ground = ground
        self._scratch = scratch
        self._numbers = itertools.count(1)

    async def prepare(self) -> None:
        owner = self._ground.owner
        values = {"name": PROJECT, "visibility": "public", "initialize_with_readme": True}
        await owner.ask("prepare", "POST", "/projects", json=values)
        start = {"branch": FILE_BRANCH, "ref": "main"}
        await owner.ask("prepare", "POST", f"{APP}/repository/branches", json=start)

    async def once(self) -> None:
        owner, number = self._ground.owner, next(self._numbers)
        branch = {"branch": f"b-{number}", "ref": "main"}
        await owner.write("branch", f"b-{number}", "POST", f"{APP}/repository/branches", json=branch)
        file = {"branch": FILE_BRANCH, "content": f"{number}\n", "commit_message": f"file {number}"}
        path = f"{APP}/repository/files/f%2F{number}%2Etxt"
        await owner.write("file", f"file {number}", "POST", path, json=file)
        actions = [
            {"action": "create", "file_path": f"c/{number}/{part}.txt", "content": f"{number} {part}\n"}
            for part in "ab"
        ]
        commit = {"branch": "main", "commit_message": f"commit {number}", "actions": actions}
        await owner.write("commit", f"commit {number}", "POST", f"{APP}/repository/commits", json=commit)
        variable = {"key": f"V_{number}", "value": f"value {number}"}
        if await owner.write("variable", number, "POST", f"{APP}/variables", json=variable) is not None:
            await self._is_shown(variable)
        name = f"user-{number}"
        user = {"username": name, "name": name, "email": f"{name}@example.org", "skip_confirmation": True}
        await self._ground.root.write(
            "user", name, "POST", "/users", json={**user, "force_random_password": True}
        )
        await owner.ask("read", "GET", f"{APP}/repository/tree?per_page=5")

    async def _is_shown(self, variable: Mapping[str, str]) -> None:
        """At once, whichever server is asked, and wherever that one reads it."""
        shown = await self._ground.owner.ask("own write", "GET", f"{APP}/variables/{variable['key']}")
        if shown is not None and shown.ok and shown.json["value"] != variable["value"]:
            self._ground.ledger.find(
                f"{variable['key']} was shown with another value than the acknowledged one"
            )

    async def present(self) -> Present:
        owner, root = self._ground.owner, self._ground.root
        clone = await mirror_of(self._scratch / "counted", self._ground.git_url(PROJECT))
        branches = (await clone("for-each-ref", "--format=%(refname:short)", "refs/heads")).splitlines()
        whole = Counter(
            one["key"].removeprefix("V_")
            for one in await owner.all(f"{APP}/variables")
            if one["value"] == f"value {one['key'].removeprefix('V_')}"
        )
        return {
            "branch": Counter(branches),
            "file": await subjects(clone, FILE_BRANCH),
            "commit": await subjects(clone, "main"),
            "variable": whole,
            "user": Counter(one["username"] for one in await root.all("/users")),
        }
