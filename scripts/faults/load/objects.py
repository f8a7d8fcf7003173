"""LFS objects, and mirrors that push to a real target."""

import asyncio
import base64
import hashlib
import itertools
import json
import random
import subprocess
import time
from collections import Counter
from typing import Any
from urllib.parse import urlsplit

from scripts.faults.environment import OWNER, Ground
from scripts.faults.load import TAKEN_SECONDS, Present
from scripts.faults.load.repositories import WRITES_PROJECT as PROJECT

MEDIA_TYPE = "application/vnd.git-lfs+json"
MIRRORED = "mirrored"
MIRROR = f"/projects/{OWNER}%2F{MIRRORED}/remote_mirrors"
#: A project may have ten; answers that got lost have made some that nobody knows of.
MOST_ENABLED = 4


class LfsObjects:
    """Uploads objects as git-lfs does: batch, put, verify."""

    rest = 0.5
    pulse = ("lfs object",)

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self._random = random.Random("lfs")
        self._contents: dict[str, bytes] = {}
        host = urlsplit(ground.owner.base).netloc
        self._url = f"http://{host}/{OWNER}/{PROJECT}.git/info/lfs/objects"
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

    def __init__(self, ground: Ground, patience: float) -> None:
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
