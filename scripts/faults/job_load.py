"""Pipelines, and runners that take their jobs, send logs in pieces, upload artifacts and say how it went."""

import asyncio
import io
import random
import time
import zipfile
from collections import Counter
from typing import Any

import aiohttp
import attrs

from scripts.faults.client import Answer, Present
from scripts.faults.environment import HAND_OUT_SECONDS, OWNER, Environment

PROJECT = "built"
HERE = f"/projects/{OWNER}%2F{PROJECT}"
FILE = "build:\n  script: make\n  artifacts:\n    paths: [made]\n"
MARK = "MADE_AS"
PIECES = 4
#: As long as a runner goes on trying to get rid of what it has.
PATIENCE_SECONDS = 120.0
RETRY_SECONDS = 0.3
#: More than these wait: no new pipeline is made.
MOST_WAITING = 40


@attrs.define
class Job:
    """A job in the hands of a runner that never forgets one."""

    id: int
    token: str
    made_as: str
    log: bytes = b""
    artifact: bytes = b""
    ending: bool = False
    finished: bool = False
    #: When it was handed out, and whether the service has heard of its runner since.
    taken_at: float = attrs.field(factory=time.monotonic)
    heard: bool = False


@attrs.define
class Jobs:
    """All that the pipelines and the runners know of each other."""

    ground: Environment
    runner_token: str = ""
    by_id: dict[int, Job] = attrs.field(factory=dict)
    wanted: set[str] = attrs.field(factory=set)
    #: How often each was handed out, those hand-outs left out that came to nothing.
    handed_out: "Counter[str]" = attrs.field(factory=Counter)

    #: Pipelines whose job failed as the service says it does when it was handed out twice to nobody.
    given_up: set[str] = attrs.field(factory=set)

    def unfinished(self) -> list[str]:
        """Pipelines that were acknowledged, and whose job has not ended."""
        done = {job.made_as for job in self.by_id.values() if job.finished}
        return sorted(self.wanted - done - self.given_up)

    async def look_for_failures(self) -> None:
        """Learns of jobs that have failed since no runner was ever heard of."""
        owner = self.ground.owner
        failed = await owner.ask("list", "GET", f"{HERE}/jobs?scope[]=failed&per_page=100")
        for shown in failed.json if failed is not None and failed.ok else ():
            job = self.by_id.get(shown["id"])
            if shown["failure_reason"] == "stuck_or_timeout_failure" and (job is None or not job.heard):
                where = f"{HERE}/pipelines/{shown['pipeline']['id']}/variables"
                variables = await owner.ask("list", "GET", where)
                if variables is not None and variables.ok:
                    self.given_up |= {one["value"] for one in variables.json if one["key"] == MARK}


class Pipelines:
    """Makes pipelines of one job."""

    rest = 0.4
    pulse = ("pipeline",)

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs
        self._number = 0

    async def prepare(self) -> None:
        owner = self._jobs.ground.owner
        made = await owner.ask("prepare", "POST", "/projects", json={"name": PROJECT})
        assert made is not None
        actions = [{"action": "create", "file_path": ".gitlab-ci.yml", "content": FILE}]
        commit = {"branch": "main", "commit_message": "Build [ci skip]", "actions": actions}
        await owner.ask("prepare", "POST", f"{HERE}/repository/commits", json=commit)
        runner = {"runner_type": "project_type", "project_id": made.json["id"], "run_untagged": True}
        answer = await owner.ask("prepare", "POST", "/user/runners", json=runner)
        assert answer is not None
        self._jobs.runner_token = answer.json["token"]

    async def once(self) -> None:
        if len(self._jobs.unfinished()) >= MOST_WAITING:
            return
        self._number += 1
        name = f"pipeline {self._number}"
        wanted = {"ref": "main", "variables": [{"key": MARK, "value": name}]}
        if await self._jobs.ground.owner.write("pipeline", name, "POST", f"{HERE}/pipeline", json=wanted):
            self._jobs.wanted.add(name)

    async def present(self) -> Present:
        """Each pipeline by its jobs; each job whole: its end, its log and its artifacts."""
        owner, by_id = self._jobs.ground.owner, self._jobs.by_id
        whole: Counter[str] = Counter()
        for shown in await owner.all(f"{HERE}/jobs"):
            job = by_id.get(shown["id"])
            if job is not None and shown["status"] == "success" and await self._is_whole(job):
                whole[str(job.id)] += 1
        return {
            "hand-out": self._jobs.handed_out,
            "pipeline": Counter(
                [*(job.made_as for job in by_id.values() if whole[str(job.id)]), *self._jobs.given_up]
            ),
            "job": whole,
        }

    async def _is_whole(self, job: Job) -> bool:
        owner, ledger = self._jobs.ground.owner, self._jobs.ground.ledger
        log = await owner.ask("log", "GET", f"{HERE}/jobs/{job.id}/trace")
        if log is None or log.body != job.log:
            ledger.find(f"the log of job {job.id} differs: {_difference(log, job.log)}")
            return False
        artifact = await owner.ask("artifact", "GET", f"{HERE}/jobs/{job.id}/artifacts")
        if artifact is None or artifact.body != job.artifact:
            ledger.find(f"the artifacts of job {job.id} differ: {_difference(artifact, job.artifact)}")
            return False
        return True


class Runner:
    """Takes one job after the other, and repeats what was not acknowledged, as GitLab's runner does."""

    rest = 0.05
    pulse = ("job",)

    def __init__(self, jobs: Jobs, name: str) -> None:
        self._jobs = jobs
        self._client = jobs.ground.nobody
        self._name = name
        self._random = random.Random(name)
        self._last_update = ""

    async def prepare(self) -> None:
        """The pipelines' worker has made the runner's token."""

    async def once(self) -> None:
        body = {"token": self._jobs.runner_token, "system_id": self._name, "last_update": self._last_update}
        answer = await self._client.ask("poll", "POST", "/jobs/request", json=body)
        if answer is None or answer.status != 201:
            # With this value the next request waits until there may be a job.
            self._last_update = "" if answer is None else answer.headers.get("X-GitLab-Last-Update", "")
            return
        variables = {one["key"]: one["value"] for one in answer.json["variables"]}
        job = Job(answer.json["id"], answer.json["token"], variables[MARK])
        ledger = self._jobs.ground.ledger
        before = self._jobs.by_id.get(job.id)
        if before is None or before.heard or job.taken_at < before.taken_at + HAND_OUT_SECONDS:
            ledger.record("hand-out", job.id, "acknowledged")
            self._jobs.handed_out[str(job.id)] += 1
        self._jobs.by_id[job.id] = job
        await self._run(job)

    async def _run(self, job: Job) -> None:
        for number in range(PIECES):
            piece = b"".join(
                b"%d/%d %x\n" % (job.id, number, self._random.getrandbits(64)) for _ in range(20)
            )
            if not await self._append(job, piece):
                return
        job.artifact = _archive(f"job {job.id}", self._random.randbytes(self._random.randrange(1000, 60_000)))
        if not await self._until_done("artifact upload", lambda: self._upload(job), done={201}):
            return
        began = time.monotonic()
        if await self._until_done("job end", lambda: self._end(job), done={200, 403}):
            job.finished = True
            self._jobs.ground.ledger.succeeded("job", began)
            self._jobs.ground.ledger.record("job", job.id, "acknowledged")

    async def _append(self, job: Job, piece: bytes) -> bool:
        """Adds a piece to the log, from where the service says that it ends."""
        start, job.log = len(job.log), job.log + piece
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            if self._was_taken(job):
                return False
            if start == len(job.log):
                return True
            headers = {"JOB-TOKEN": job.token, "Content-Range": f"{start}-{len(job.log) - 1}"}
            answer = await self._client.ask(
                "append",
                "PATCH",
                f"/jobs/{job.id}/trace",
                data=job.log[start:],
                headers=headers,
                expected={416} | self._refusals(job),
            )
            if answer is None:
                await asyncio.sleep(RETRY_SECONDS)
            elif answer.status in (202, 416):
                job.heard = True
                start = int(answer.headers["Range"].removeprefix("0-"))
            else:
                return False
        self._jobs.ground.ledger.find(f"job {job.id}: its log could not be added to for two minutes")
        return False

    def _was_taken(self, job: Job) -> bool:
        """Whether another runner has it now, since nothing was heard of this one for too long."""
        return self._jobs.by_id[job.id] is not job

    def _refusals(self, job: Job) -> set[int]:
        """What the service may say to a runner that it has not heard of in time."""
        late = not job.heard and time.monotonic() > job.taken_at + HAND_OUT_SECONDS
        return {401, 403, 404} if late or self._was_taken(job) else set()

    async def _upload(self, job: Job) -> Answer | None:
        form = aiohttp.FormData()
        form.add_field("file", io.BytesIO(job.artifact), filename="artifacts.zip")
        headers = {"JOB-TOKEN": job.token}
        return await self._client.ask(
            "upload", "POST", f"/jobs/{job.id}/artifacts", data=form, headers=headers
        )

    async def _end(self, job: Job) -> Answer | None:
        """403 to a repetition: the job has ended, and the answer that said so was lost."""
        body = {"token": job.token, "state": "success"}
        expected = {202, 403} if job.ending else {202}
        job.ending = True
        return await self._client.ask("end", "PUT", f"/jobs/{job.id}", json=body, expected=expected)

    async def _until_done(self, what: str, ask: Any, done: set[int]) -> bool:
        """Asks until the service has done it; whether it has. 202 says that it will."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            answer = await ask()
            if answer is not None and answer.status in done:
                return True
            if answer is not None and answer.status != 202 and answer.status < 500:
                return False  # which is a finding already
            await asyncio.sleep(RETRY_SECONDS)
        self._jobs.ground.ledger.find(f"{what} was not acknowledged for two minutes")
        return False

    async def present(self) -> Present:
        return {}


def _archive(name: str, content: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(name, content)
    return file.getvalue()


def _difference(answer: Answer | None, wanted: bytes) -> str:
    if answer is None:
        return "no answer"
    if answer.status != 200:
        return f"status {answer.status}, where {len(wanted)} bytes were acknowledged"
    same = next((at for at, (a, b) in enumerate(zip(answer.body, wanted, strict=False)) if a != b), None)
    return f"{len(answer.body)} bytes for {len(wanted)}, the first other one at {same}"
