"""Merge requests, what status checks say of them, merges, and the deliveries that they cause."""

import asyncio
import itertools
import time
from collections import Counter
from pathlib import Path
from typing import Any

from scripts.faults.ground import OWNER, Ground
from scripts.faults.load import TAKEN_SECONDS, Present
from scripts.faults.load.git import mirror_of, subjects

PROJECT = "merged"
HERE = f"/projects/{OWNER}%2F{PROJECT}"


class MergeRequests:
    rest = 0.1
    pulse = ("merge request", "response", "merge")

    def __init__(self, ground: Ground, scratch: Path, patience: float) -> None:
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
            "prepare", "POST", "/projects", json={"name": PROJECT, "initialize_with_readme": True}
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
        clone = await mirror_of(self._scratch / "counted-merges", self._ground.git_url(PROJECT))
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
