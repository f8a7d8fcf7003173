"""Load on repositories: pushes, merge requests, writes through the API, LFS objects, and mirrors with real targets."""

import base64
import hashlib
import json
import operator
import random
import shutil
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from scripts.faults.client import Ledger
from scripts.faults.environment import OWNER, Environment, Present, Worker
from scripts.harness.contents import commit_values, user_values
from scripts.harness.processes import retry_until
from tests.support.git_client import Git, Ran

#: Seconds after which another server takes over the unfinished work of a killed one.
TAKEN_SECONDS = 60.0


async def subjects(clone: Git, *refs: str) -> "Counter[str]":
    """Count the first lines of the messages of all commits on these branches."""
    text = await clone("log", "--format=%s", *(f"refs/heads/{ref}" for ref in refs), "--")
    return Counter(text.splitlines())


async def mirror_of(folder: Path, url: str) -> Git:
    """Clone a repository with all refs."""
    await Git(Path("/"))("clone", "--quiet", "--mirror", url, str(folder))
    return Git(folder)


#: Words in git's output when the server refuses a push, and those that make it a temporary refusal. The status of the
#: answer has been sent before the refusal, so it says nothing about it.
_NO = ("rejected", "error: 500", "error: 4", "denied")
_FOR_NOW = ("try again", "No space left on device", "couldn't write")


async def attempt(ledger: Ledger, git: Git, *arguments: str) -> Ran:
    """Run git. If it has not ended after a minute, record a finding and return a failure."""
    try:
        return await git.run(*arguments)
    except TimeoutError:
        ledger.find(f"git {arguments[0]} was not over after a minute")
        return Ran(-1, "")


def was_refused(result: Ran) -> bool:
    """Return whether the server has refused the push permanently."""
    return any(word in result.output for word in _NO) and not any(word in result.output for word in _FOR_NOW)


WRITES_PROJECT = "app"
APP = f"/projects/{OWNER}%2F{WRITES_PROJECT}"
FILE_BRANCH = "files"
CLONE_EVERY = 4


class Pushes(Worker):
    """A person with a clone and a branch of her own, in the repository to which the API writes as well."""

    rest = 0.1
    pulse = ("push",)

    def __init__(self, environment: Environment, scratch: Path, name: str) -> None:
        super().__init__(environment)
        self._scratch = scratch / name
        self._branch = name
        self._url = environment.git_url(WRITES_PROJECT)

    async def prepare(self) -> None:
        git = Git(self._scratch / "work")
        git.folder.mkdir(parents=True)
        await git("clone", "--quiet", self._url, ".")
        await git("checkout", "--quiet", "-b", self._branch)

    async def once(self) -> None:
        git, number, ledger = Git(self._scratch / "work"), next(self.numbers), self.ledger
        identity = f"{self._branch} {number}"
        await git.commit_files({f"{number}.txt": f"{identity}\n" * 50}, identity)
        start, fault = time.monotonic(), ledger.fault
        result = await attempt(ledger, git, "push", "--quiet", self._url, f"HEAD:refs/heads/{self._branch}")
        ledger.answers[fault, "pushed" if result.code == 0 else "push failed"] += 1
        ledger.record("push", identity, "unknown" if result.code else "acknowledged")
        if result.code == 0:
            ledger.succeeded("push", start)
        elif was_refused(result):
            ledger.find(f"git push of {identity} was refused: {result.output[-400:]}")
        if number % CLONE_EVERY == 1:
            await self._clone()

    async def _clone(self) -> None:
        folder = self._scratch / "clone"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        start = time.monotonic()
        arguments = ("clone", "--quiet", "--bare", "--single-branch", self._url, ".")
        if (await attempt(self.ledger, Git(folder), *arguments)).code == 0:
            self.ledger.succeeded("clone", start)

    async def present(self) -> Present:
        clone = await mirror_of(self._scratch / "counted", self._url)
        return {"push": await subjects(clone, self._branch)}


class ApiWrites(Worker):
    """A worker that makes each kind of write through the API, one after the other."""

    rest = 0.05
    pulse = ("branch", "file", "commit", "variable", "own write", "user", "read")

    def __init__(self, environment: Environment, scratch: Path) -> None:
        super().__init__(environment)
        self._scratch = scratch

    async def prepare(self) -> None:
        await self.create_project(WRITES_PROJECT, visibility="public", initialize_with_readme=True)
        start = {"branch": FILE_BRANCH, "ref": "main"}
        await self.owner.ask("prepare", "POST", f"{APP}/repository/branches", json=start)

    async def once(self) -> None:
        owner, number = self.owner, next(self.numbers)
        branch = {"branch": f"b-{number}", "ref": "main"}
        await owner.write("branch", f"b-{number}", "POST", f"{APP}/repository/branches", json=branch)
        file = {"branch": FILE_BRANCH, "content": f"{number}\n", "commit_message": f"file {number}"}
        path = f"{APP}/repository/files/f%2F{number}%2Etxt"
        await owner.write("file", f"file {number}", "POST", path, json=file)
        files = {f"c/{number}/{part}.txt": f"{number} {part}\n" for part in "ab"}
        commit = commit_values("main", files, message=f"commit {number}")
        await owner.write("commit", f"commit {number}", "POST", f"{APP}/repository/commits", json=commit)
        variable = {"key": f"V_{number}", "value": f"value {number}"}
        if await owner.write("variable", number, "POST", f"{APP}/variables", json=variable) is not None:
            await self._is_shown(variable)
        name = f"user-{number}"
        await self.environment.root.write("user", name, "POST", "/users", json=user_values(name))
        await owner.ask("read", "GET", f"{APP}/repository/tree?per_page=5")

    async def _is_shown(self, variable: Mapping[str, str]) -> None:
        """Check that the variable is shown at once, from whichever server and database."""
        response = await self.owner.ask("own write", "GET", f"{APP}/variables/{variable['key']}")
        if response is not None and response.ok and response.json["value"] != variable["value"]:
            self.ledger.find(f"{variable['key']} was shown with another value than the acknowledged one")

    async def present(self) -> Present:
        clone = await mirror_of(self._scratch / "counted", self.environment.git_url(WRITES_PROJECT))
        branches = (await clone("for-each-ref", "--format=%(refname:short)", "refs/heads")).splitlines()
        variables = {
            variable["key"].removeprefix("V_"): variable["value"]
            for variable in await self.owner.all(f"{APP}/variables")
        }
        return {
            "branch": Counter(branches),
            "file": await subjects(clone, FILE_BRANCH),
            "commit": await subjects(clone, "main"),
            "variable": Counter(number for number, value in variables.items() if value == f"value {number}"),
            "user": Counter(user["username"] for user in await self.environment.root.all("/users")),
        }


MERGE_PROJECT = "merged"
HERE = f"/projects/{OWNER}%2F{MERGE_PROJECT}"


class MergeRequests(Worker):
    """A worker that opens merge requests, lets their status checks pass, and merges them. `timeout`: seconds to wait
    at the end for the unfinished work of a killed server."""

    rest = 0.1
    pulse = ("merge request", "response", "merge")

    def __init__(self, environment: Environment, scratch: Path, timeout: float) -> None:
        super().__init__(environment)
        self._timeout = timeout
        self._scratch = scratch
        self._check = 0
        self._responses: dict[int, list[str]] = {}

    async def prepare(self) -> None:
        await self.create_project(MERGE_PROJECT, initialize_with_readme=True)
        check = {"name": "QA", "external_url": self.environment.outside.receiver_url}
        created = await self.owner.ask("prepare", "POST", f"{HERE}/external_status_checks", json=check)
        assert created is not None
        self._check = created.json["id"]

    async def once(self) -> None:
        owner, number = self.owner, next(self.numbers)
        source = f"source-{number}"
        files = {f"{source}.txt": source}
        if not await self.commit(HERE, source, files, "source", message=source, start_branch="main"):
            return
        name, where = f"request {number}", f"{HERE}/merge_requests"
        title = {"title": name, "source_branch": source, "target_branch": "main"}
        created = await owner.write("merge request", name, "POST", where, json=title)
        if created is None:
            return
        iid, sha = created.json["iid"], created.json["sha"]
        response = {"sha": sha, "external_status_check_id": self._check, "status": "passed"}
        for part in "ab":
            text = f"response {number} {part}"
            self._responses.setdefault(iid, []).append(text)
            path = f"{where}/{iid}/status_check_responses"
            await owner.write("response", text, "POST", path, json={**response, "description": text})
        message = {"merge_commit_message": f"merge {number}"}
        await owner.write("merge", f"merge {number}", "PUT", f"{where}/{iid}/merge", json=message)

    async def present(self) -> Present:
        clone = await mirror_of(self._scratch / "counted-merges", self.environment.git_url(MERGE_PROJECT))
        merges = await subjects(clone, "main")
        requests = await self._in_step(merges)
        responses: Counter[str] = Counter()
        for iid in self._responses.keys() & {request["iid"] for request in requests}:
            path = f"{HERE}/merge_requests/{iid}/status_checks/{self._check}/responses"
            responses.update(response["description"] for response in await self.owner.all(path))
        return {
            "merge request": Counter(request["title"] for request in requests),
            "response": responses,
            "merge": merges,
            "delivery": await self._deliveries(),
        }

    async def _in_step(self, merges: "Counter[str]") -> list[dict[str, Any]]:
        """Return all merge requests, once exactly those are merged whose merge commit is on main: an interrupted merge
        is completed within a minute."""

        def differing(requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
            return [
                request
                for request in requests
                if (request["state"] == "merged") != bool(merges[_merge_of(request)])
            ]

        path = f"{HERE}/merge_requests?state=all"
        found = await retry_until(
            lambda: self.owner.all(path), self._timeout, is_done=lambda requests: not differing(requests)
        )
        for request in differing(found) if self._timeout >= TAKEN_SECONDS else ():
            count = merges[_merge_of(request)]
            self.ledger.find(
                f"merge request {request['iid']} is {request['state']}, and main has {count} merges of it"
            )
        return found

    async def _deliveries(self) -> "Counter[str]":
        """Count the deliveries. One with the status `delivered` has to have arrived; any other has to have a recorded
        failure, and a next attempt unless it has failed finally."""
        path = f"{HERE}/external_status_checks/{self._check}/deliveries"
        deliveries = await retry_until(
            lambda: self.owner.all(path), self._timeout, is_done=lambda all_: not any(map(_is_untried, all_))
        )
        present: Counter[str] = Counter()
        for delivery in deliveries:
            if _is_untried(delivery) and self._timeout < TAKEN_SECONDS:
                continue
            self.ledger.record("delivery", delivery["id"], "acknowledged")
            arrived = delivery["webhook_id"] in self.environment.outside.delivered
            recorded = delivery["status"] == "failed" or (
                delivery["status"] == "queued" and delivery["attempts_count"] > 0
            )
            present[str(delivery["id"])] += arrived if delivery["status"] == "delivered" else recorded
        return present


def _is_untried(delivery: dict[str, Any]) -> bool:
    return delivery["status"] == "queued" and not delivery["attempts_count"]


def _merge_of(request: dict[str, Any]) -> str:
    """Return the message of the request's merge commit."""
    return str(request["title"]).replace("request", "merge")


MEDIA_TYPE = "application/vnd.git-lfs+json"


class LfsObjects(Worker):
    """A worker that uploads objects as git-lfs does: batch, put, verify. The project belongs to another worker."""

    rest = 0.5
    pulse = ("lfs object", "lfs verify")

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        self._random = random.Random("lfs")
        self._contents: dict[str, bytes] = {}
        host = urlsplit(self.owner.base).netloc
        self._url = f"http://{host}/{OWNER}/{WRITES_PROJECT}.git/info/lfs/objects"
        authorization = base64.b64encode(f"{OWNER}:{self.owner.token}".encode()).decode()
        self._authorized = {"Authorization": f"Basic {authorization}"}

    async def once(self) -> None:
        content = self._random.randbytes(self._random.randrange(1000, 60_000))
        oid = hashlib.sha256(content).hexdigest()
        self._contents[oid] = content
        pointer = {"oid": oid, "size": len(content)}
        batch = {"operation": "upload", "objects": [pointer]}
        headers = self._authorized | {"Accept": MEDIA_TYPE, "Content-Type": MEDIA_TYPE}
        args: dict[str, Any] = {"data": json.dumps(batch), "headers": headers}
        answer = await self.owner.ask("lfs batch", "POST", f"{self._url}/batch", **args)
        if answer is None or not answer.ok:
            return
        upload, verify = map(json.loads(answer.body)["objects"][0]["actions"].get, ("upload", "verify"))
        headers = {**upload["header"], "Content-Type": "application/octet-stream"}
        if await self.owner.write("lfs object", oid, "PUT", upload["href"], data=content, headers=headers):
            args = {"data": json.dumps(pointer), "headers": {**verify["header"], "Content-Type": MEDIA_TYPE}}
            await self.owner.ask("lfs verify", "POST", verify["href"], **args)

    async def present(self) -> Present:
        complete: Counter[str] = Counter()
        options: dict[str, Any] = {"headers": self._authorized, "expected": {404}}
        for oid, content in self._contents.items():
            answer = await self.owner.ask("lfs", "GET", f"{self._url}/{oid}", **options)
            complete[oid] += answer is not None and answer.body == content
        return {"lfs object": complete}


MIRRORED = "mirrored"
MIRROR = f"/projects/{OWNER}%2F{MIRRORED}/remote_mirrors"
#: Maximum number of enabled mirrors here. A project may have ten, and lost answers may have created unknown ones.
MAX_ENABLED = 4


class Mirrors(Worker):
    """A worker that creates a mirror with a new target, asks for an update, and disables the mirror after it."""

    rest = 1.0

    def __init__(self, environment: Environment, timeout: float) -> None:
        super().__init__(environment)
        self._timeout = timeout
        self._ids: dict[str, int] = {}
        self._enabled: list[str] = []

    async def prepare(self) -> None:
        await self.create_project(MIRRORED, initialize_with_readme=True)

    async def once(self) -> None:
        if len(self._enabled) >= MAX_ENABLED:
            await self._turn_off()
            return
        name = f"target-{next(self.numbers)}"
        mirror = {"url": self.environment.outside.new_target(name), "enabled": True}
        created = await self.owner.ask("mirror made", "POST", MIRROR, json=mirror, expected={400})
        if created is None or not created.ok:
            return
        self._ids[name] = created.json["id"]
        self._enabled.append(name)
        await self.owner.write("mirror", name, "POST", f"{MIRROR}/{created.json['id']}/sync")

    async def _turn_off(self) -> None:
        """Disable mirrors that have been updated, since a project may have only few enabled ones."""
        for name in list(self._enabled):
            if await self._has_run(name):
                path, body = f"{MIRROR}/{self._ids[name]}", {"enabled": False}
                if await self.owner.ask("mirror off", "PUT", path, json=body):
                    self._enabled.remove(name)

    async def _has_run(self, name: str) -> bool:
        """Return whether the target has the branch, or the service has recorded the failure."""
        target = Git(self.environment.outside.mirrored / f"{name}.git")
        if (await target.run("show-ref", "refs/heads/main")).code == 0:
            return True
        answer = await self.owner.ask("mirror read", "GET", f"{MIRROR}/{self._ids[name]}")
        return answer is not None and answer.ok and bool(answer.json["last_error"])

    async def present(self) -> Present:
        """Count the mirrors that have been updated. Unfinished updates of a killed server are repeated later, so a
        short `timeout` gives no result."""

        async def waiting() -> list[str]:
            return [name for name in self._ids if not await self._has_run(name)]

        waiting_names = await retry_until(waiting, self._timeout, is_done=operator.not_)
        if waiting_names and self._timeout < TAKEN_SECONDS:
            return {}
        return {"mirror": Counter(self._ids.keys() - set(waiting_names))}
