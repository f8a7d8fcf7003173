"""Load on repositories: pushes, merge requests, writes through the API, LFS objects, and mirrors with real targets."""

import asyncio
import base64
import hashlib
import itertools
import json
import random
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from scripts.faults.client import TAKEN_SECONDS, Ledger, Present
from scripts.faults.environment import OWNER, Environment
from tests.support.git_client import Git, Ran


async def subjects(clone: Git, *refs: str) -> "Counter[str]":
    """How often each first line stands above a commit that these branches hold."""
    text = await clone("log", "--format=%s", *(f"refs/heads/{ref}" for ref in refs), "--")
    return Counter(text.splitlines())


async def mirror_of(folder: Path, url: str) -> Git:
    """A clone of everything, made anew."""
    await Git(Path("/"))("clone", "--quiet", "--mirror", url, str(folder))
    return Git(folder)


#: What git says of a push that the server would not take, and of those the ones that say what hinders it for now: by
#: then the answer's status has been sent.
_NO = ("rejected", "error: 500", "error: 4", "denied")
_FOR_NOW = ("try again", "No space left on device", "couldn't write")


async def attempt(ledger: Ledger, git: Git, *arguments: str) -> Ran:
    """Runs git; that it has not ended after a minute is a finding, and a failure like others."""
    try:
        return await git.run(*arguments)
    except TimeoutError:
        ledger.find(f"git {arguments[0]} was not over after a minute")
        return Ran(-1, "")


def was_refused(ran: Ran) -> bool:
    """Whether the server said no for good."""
    return any(word in ran.output for word in _NO) and not any(word in ran.output for word in _FOR_NOW)


CLONE_EVERY = 4


class Pushes:
    """One person with a clone and a branch of her own, into the repository that the API writes to as well."""

    rest = 0.1
    pulse = ("push",)

    def __init__(self, ground: Environment, scratch: Path, name: str) -> None:
        self._ground = ground
        self._scratch = scratch / name
        self._branch = name
        self._numbers = itertools.count(1)

    async def prepare(self) -> None:
        git = Git(self._scratch / "work")
        git.folder.mkdir(parents=True)
        await git("clone", "--quiet", self._ground.git_url(WRITES_PROJECT), ".")
        await git("checkout", "--quiet", "-b", self._branch)

    async def once(self) -> None:
        git, number = Git(self._scratch / "work"), next(self._numbers)
        identity = f"{self._branch} {number}"
        await git.commit_files({f"{number}.txt": f"{identity}\n" * 50}, identity)
        began, fault = time.monotonic(), self._ground.ledger.fault
        ledger, url = self._ground.ledger, self._ground.git_url(WRITES_PROJECT)
        ran = await attempt(ledger, git, "push", "--quiet", url, f"HEAD:refs/heads/{self._branch}")
        ledger.answers[fault, "pushed" if ran.code == 0 else "push failed"] += 1
        if ran.code == 0:
            ledger.succeeded("push", began)
            ledger.record("push", identity, "acknowledged")
        else:
            ledger.record("push", identity, "unknown")
            if was_refused(ran):
                ledger.find(f"git push of {identity} was refused: {ran.output[-400:]}")
        if number % CLONE_EVERY == 1:
            await self._clone()

    async def _clone(self) -> None:
        folder = self._scratch / "clone"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        began = time.monotonic()
        url = self._ground.git_url(WRITES_PROJECT)
        words = ("clone", "--quiet", "--bare", "--single-branch", url, ".")
        ran = await attempt(self._ground.ledger, Git(folder), *words)
        if ran.code == 0:
            self._ground.ledger.succeeded("clone", began)

    async def present(self) -> Present:
        clone = await mirror_of(self._scratch / "counted", self._ground.git_url(WRITES_PROJECT))
        return {"push": await subjects(clone, self._branch)}


MERGE_PROJECT = "merged"
HERE = f"/projects/{OWNER}%2F{MERGE_PROJECT}"


class MergeRequests:
    rest = 0.1
    pulse = ("merge request", "response", "merge")

    def __init__(self, ground: Environment, scratch: Path, patience: float) -> None:
        """`patience`: seconds to wait at the end for what a killed server had in hand."""
        self._patience = patience
        self._ground = ground
        self._scratch = scratch
        self._numbers = itertools.count(1)
        self._check = 0
        self._responses: dict[int, list[str]] = {}

    async def prepare(self) -> None:
        owner = self._ground.owner
        await owner.ask(
            "prepare", "POST", "/projects", json={"name": MERGE_PROJECT, "initialize_with_readme": True}
        )
        check = {"name": "QA", "external_url": self._ground.outside.receiver_url}
        made = await owner.ask("prepare", "POST", f"{HERE}/external_status_checks", json=check)
        assert made is not None
        self._check = made.json["id"]

    async def once(self) -> None:
        owner, number = self._ground.owner, next(self._numbers)
        source = f"source-{number}"
        actions = [{"action": "create", "file_path": f"{source}.txt", "content": source}]
        commit = {"branch": source, "start_branch": "main", "commit_message": source, "actions": actions}
        if await owner.ask("source", "POST", f"{HERE}/repository/commits", json=commit) is None:
            return
        title = {"title": f"request {number}", "source_branch": source, "target_branch": "main"}
        made = await owner.write(
            "merge request", f"request {number}", "POST", f"{HERE}/merge_requests", json=title
        )
        if made is None:
            return
        iid, sha = made.json["iid"], made.json["sha"]
        for part in "ab":
            said = f"response {number} {part}"
            self._responses.setdefault(iid, []).append(said)
            response = {"sha": sha, "external_status_check_id": self._check, "status": "passed"}
            where = f"{HERE}/merge_requests/{iid}/status_check_responses"
            await owner.write("response", said, "POST", where, json={**response, "description": said})
        message = {"merge_commit_message": f"merge {number}"}
        where = f"{HERE}/merge_requests/{iid}/merge"
        await owner.write("merge", f"merge {number}", "PUT", where, json=message)

    async def present(self) -> Present:
        owner = self._ground.owner
        clone = await mirror_of(self._scratch / "counted-merges", self._ground.git_url(MERGE_PROJECT))
        merges = await subjects(clone, "main")
        requests = await self._in_step(merges)
        said: Counter[str] = Counter()
        for iid in self._responses.keys() & {one["iid"] for one in requests}:
            path = f"{HERE}/merge_requests/{iid}/status_checks/{self._check}/responses"
            said.update(one["description"] for one in await owner.all(path))
        return {
            "merge request": Counter(request["title"] for request in requests),
            "response": said,
            "merge": merges,
            "delivery": await self._deliveries(),
        }

    async def _in_step(self, merges: "Counter[str]") -> list[dict[str, Any]]:
        """All merge requests, when each is merged that main has: a merge that was cut off is settled within a
        minute."""
        deadline = time.monotonic() + self._patience
        while True:
            found = await self._ground.owner.all(f"{HERE}/merge_requests?state=all")
            off = [one for one in found if (one["state"] == "merged") != bool(merges[_merge_of(one)])]
            if not off or time.monotonic() > deadline:
                break
            await asyncio.sleep(0.5)
        for one in off if self._patience >= TAKEN_SECONDS else ():
            self._ground.ledger.find(
                f"merge request {one['iid']} is {one['state']}, and main has {merges[_merge_of(one)]} merges of it"
            )
        return found

    async def _deliveries(self) -> "Counter[str]":
        """Each that is said to be delivered has arrived; each other one has its failure on record, and its next try."""
        present: Counter[str] = Counter()
        for one in await self._settled():
            if _is_untried(one) and self._patience < TAKEN_SECONDS:
                continue
            self._ground.ledger.record("delivery", one["id"], "acknowledged")
            arrived = one["webhook_id"] in self._ground.outside.delivered
            recorded = one["status"] == "failed" or (one["status"] == "queued" and one["attempts_count"] > 0)
            present[str(one["id"])] += arrived if one["status"] == "delivered" else recorded
        return present

    async def _settled(self) -> list[dict[str, Any]]:
        """All deliveries, when each has been tried."""
        deadline = time.monotonic() + self._patience
        while True:
            path = f"{HERE}/external_status_checks/{self._check}/deliveries"
            found = await self._ground.owner.all(path)
            if not any(map(_is_untried, found)) or time.monotonic() > deadline:
                return found
            await asyncio.sleep(0.5)


def _is_untried(delivery: dict[str, Any]) -> bool:
    return delivery["status"] == "queued" and not delivery["attempts_count"]


def _merge_of(request: dict[str, Any]) -> str:
    """The message of its merge commit."""
    return str(request["title"]).replace("request", "merge")


WRITES_PROJECT = "app"
APP = f"/projects/{OWNER}%2F{WRITES_PROJECT}"
FILE_BRANCH = "files"


class ApiWrites:
    """One of each after the other."""

    rest = 0.05
    pulse = ("branch", "file", "commit", "variable", "own write", "user", "read")

    def __init__(self, ground: Environment, scratch: Path) -> None:
        self._ground = ground
        self._scratch = scratch
        self._numbers = itertools.count(1)

    async def prepare(self) -> None:
        owner = self._ground.owner
        values = {"name": WRITES_PROJECT, "visibility": "public", "initialize_with_readme": True}
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
        clone = await mirror_of(self._scratch / "counted", self._ground.git_url(WRITES_PROJECT))
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


MEDIA_TYPE = "application/vnd.git-lfs+json"
MIRRORED = "mirrored"
MIRROR = f"/projects/{OWNER}%2F{MIRRORED}/remote_mirrors"
#: A project may have ten; answers that got lost have made some that nobody knows of.
MOST_ENABLED = 4


class LfsObjects:
    """Uploads objects as git-lfs does: batch, put, verify."""

    rest = 0.5
    pulse = ("lfs object",)

    def __init__(self, ground: Environment) -> None:
        self._ground = ground
        self._random = random.Random("lfs")
        self._contents: dict[str, bytes] = {}
        host = urlsplit(ground.owner.base).netloc
        self._url = f"http://{host}/{OWNER}/{WRITES_PROJECT}.git/info/lfs/objects"
        authorization = base64.b64encode(f"{OWNER}:{ground.owner.token}".encode()).decode()
        self._headers = {
            "Authorization": f"Basic {authorization}",
            "Accept": MEDIA_TYPE,
            "Content-Type": MEDIA_TYPE,
        }

    async def prepare(self) -> None:
        """The project is another worker's."""

    async def once(self) -> None:
        owner = self._ground.owner
        content = self._random.randbytes(self._random.randrange(1000, 60_000))
        oid = hashlib.sha256(content).hexdigest()
        self._contents[oid] = content
        found = await self._batch("upload", oid)
        if found is None:
            return
        action = found["actions"]["upload"]
        headers = {**action["header"], "Content-Type": "application/octet-stream"}
        await owner.write("lfs object", oid, "PUT", action["href"], data=content, headers=headers)

    async def _batch(self, operation: str, oid: str) -> dict[str, Any] | None:
        wanted = {"operation": operation, "objects": [{"oid": oid, "size": len(self._contents[oid])}]}
        answer = await self._ground.owner.ask(
            "lfs batch", "POST", f"{self._url}/batch", data=json.dumps(wanted), headers=self._headers
        )
        return None if answer is None or not answer.ok else json.loads(answer.body)["objects"][0]

    async def present(self) -> Present:
        whole: Counter[str] = Counter()
        for oid, content in self._contents.items():
            headers = {"Authorization": self._headers["Authorization"]}
            found = await self._ground.owner.ask(
                "lfs", "GET", f"{self._url}/{oid}", headers=headers, expected={404}
            )
            whole[oid] += found is not None and found.body == content
        return {"lfs object": whole}


class Mirrors:
    """Makes a mirror to a new target, asks for a run, and turns the mirror off when that is over."""

    rest = 1.0
    pulse = ()

    def __init__(self, ground: Environment, patience: float) -> None:
        self._ground = ground
        self._numbers = itertools.count(1)
        self._patience = patience
        self._ids: dict[str, int] = {}
        self._enabled: list[str] = []

    async def prepare(self) -> None:
        values = {"name": MIRRORED, "initialize_with_readme": True}
        await self._ground.owner.ask("prepare", "POST", "/projects", json=values)

    async def once(self) -> None:
        if len(self._enabled) >= MOST_ENABLED:
            await self._turn_off()
            return
        owner, name = self._ground.owner, f"target-{next(self._numbers)}"
        url = self._ground.outside.new_target(name)
        made = await owner.ask(
            "mirror made", "POST", MIRROR, json={"url": url, "enabled": True}, expected={400}
        )
        if made is None or not made.ok:
            return
        self._ids[name] = made.json["id"]
        self._enabled.append(name)
        await owner.write("mirror", name, "POST", f"{MIRROR}/{made.json['id']}/sync")

    async def _turn_off(self) -> None:
        """A project has few enabled mirrors: those that have run make room."""
        for name in list(self._enabled):
            if await self._has_run(name):
                off = {"enabled": False}
                if await self._ground.owner.ask("mirror off", "PUT", f"{MIRROR}/{self._ids[name]}", json=off):
                    self._enabled.remove(name)

    async def _has_run(self, name: str) -> bool:
        """Whether the target has what it was to get, or the failure is on record."""
        if self._arrived(name):
            return True
        shown = await self._ground.owner.ask("mirror read", "GET", f"{MIRROR}/{self._ids[name]}")
        return shown is not None and shown.ok and bool(shown.json["last_error"])

    def _arrived(self, name: str) -> bool:
        command = [
            "git",
            f"--git-dir={self._ground.outside.mirrored / name}.git",
            "show-ref",
            "refs/heads/main",
        ]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    async def present(self) -> Present:
        """Runs that a killed server had in hand are made again; who has no patience for that cannot judge them."""
        deadline = time.monotonic() + self._patience
        while left := [name for name in self._ids if not await self._has_run(name)]:
            if time.monotonic() > deadline:
                break
            await asyncio.sleep(0.5)
        if left and self._patience < TAKEN_SECONDS:
            return {}
        return {"mirror": Counter(self._ids.keys() - set(left))}
