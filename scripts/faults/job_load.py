"""Load on pipelines: runners take their jobs, send logs in pieces, upload artifacts and report the result."""

import asyncio
import io
import random
import time
from collections import Counter
from typing import Any

import aiohttp
import attrs

from scripts.faults.client import Answer
from scripts.faults.environment import HAND_OUT_SECONDS, OWNER, Environment, Present, Worker
from scripts.harness.contents import archive

PROJECT = "built"
HERE = f"/projects/{OWNER}%2F{PROJECT}"
FILE = "build:\n  script: make\n  artifacts:\n    paths: [made]\n"
MARK = "MADE_AS"
PIECES = 4
#: Seconds for which a runner repeats a failed request.
RUNNER_SECONDS = 120.0
RETRY_SECONDS = 0.3
#: Maximum number of unfinished pipelines; no new pipeline is created above it.
MAX_WAITING = 40


@attrs.define
class Job:
    """A job that a runner holds; the runner never forgets it."""

    id: int
    token: str
    made_as: str
    log: bytes = b""
    artifact: bytes = b""
    ending: bool = False
    finished: bool = False
    #: When the job was handed out, and whether the service has received anything from its runner since.
    taken_at: float = attrs.field(factory=time.monotonic)
    heard: bool = False


@attrs.define
class Jobs:
    """The state that the pipelines and the runners of the load share."""

    environment: Environment
    runner_token: str = ""
    by_id: dict[int, Job] = attrs.field(factory=dict)
    acknowledged: set[str] = attrs.field(factory=set)
    #: How often each job was handed out, without hand-outs that the service has taken back.
    handed_out: "Counter[str]" = attrs.field(factory=Counter)

    #: Pipelines whose job failed because it was handed out twice and no runner was heard of.
    given_up: set[str] = attrs.field(factory=set)

    def unfinished(self) -> list[str]:
        """Return the acknowledged pipelines whose job has not ended."""
        finished = {job.made_as for job in self.by_id.values() if job.finished}
        return sorted(self.acknowledged - finished - self.given_up)

    async def still_unfinished(self) -> list[str]:
        """Return the pipelines as `unfinished` does, after a search for jobs that have failed because no runner was
        ever heard of."""
        owner = self.environment.owner
        failed = await owner.ask("list", "GET", f"{HERE}/jobs?scope[]=failed&per_page=100")
        for failed_job in failed.json if failed is not None and failed.ok else ():
            job = self.by_id.get(failed_job["id"])
            if failed_job["failure_reason"] == "stuck_or_timeout_failure" and (job is None or not job.heard):
                path = f"{HERE}/pipelines/{failed_job['pipeline']['id']}/variables"
                variables = await owner.ask("list", "GET", path)
                if variables is not None and variables.ok:
                    self.given_up |= {
                        variable["value"] for variable in variables.json if variable["key"] == MARK
                    }
        return self.unfinished()


class Pipelines(Worker):
    """A worker that creates pipelines of one job."""

    rest = 0.4
    pulse = ("pipeline",)

    def __init__(self, jobs: Jobs) -> None:
        super().__init__(jobs.environment)
        self._jobs = jobs

    async def prepare(self) -> None:
        project = await self.create_project(PROJECT)
        await self.commit(HERE, "main", {".gitlab-ci.yml": FILE}, message="Build [ci skip]")
        runner = {"runner_type": "project_type", "project_id": project["id"], "run_untagged": True}
        answer = await self.owner.ask("prepare", "POST", "/user/runners", json=runner)
        assert answer is not None
        self._jobs.runner_token = answer.json["token"]

    async def once(self) -> None:
        if len(self._jobs.unfinished()) >= MAX_WAITING:
            return
        name = f"pipeline {next(self.numbers)}"
        values = {"ref": "main", "variables": [{"key": MARK, "value": name}]}
        if await self.owner.write("pipeline", name, "POST", f"{HERE}/pipeline", json=values):
            self._jobs.acknowledged.add(name)

    async def present(self) -> Present:
        """Count each pipeline whose job is whole, and each whole job: its status, its log and its artifacts are
        right."""
        by_id = self._jobs.by_id
        complete: Counter[str] = Counter()
        for entity in await self.owner.all(f"{HERE}/jobs"):
            job = by_id.get(entity["id"])
            if job is not None and entity["status"] == "success" and await self._is_whole(job):
                complete[str(job.id)] += 1
        finished = [job.made_as for job in by_id.values() if complete[str(job.id)]]
        pipelines = Counter([*finished, *self._jobs.given_up])
        return {"hand-out": self._jobs.handed_out, "pipeline": pipelines, "job": complete}

    async def _is_whole(self, job: Job) -> bool:
        for part, expected in (("trace", job.log), ("artifacts", job.artifact)):
            stored = await self.owner.ask(part, "GET", f"{HERE}/jobs/{job.id}/{part}")
            if stored is None or stored.body != expected:
                self.ledger.find(f"the {part} of job {job.id} differ: {_difference(stored, expected)}")
                return False
        return True


class Runner(Worker):
    """A runner that takes one job after the other, and repeats requests that were not acknowledged, as GitLab's runner
    does."""

    rest = 0.05
    pulse = ("job",)

    def __init__(self, jobs: Jobs, name: str) -> None:
        super().__init__(jobs.environment)
        self._jobs = jobs
        self._client = jobs.environment.nobody
        self._name = name
        self._random = random.Random(name)
        self._last_update = ""

    async def once(self) -> None:
        body = {"token": self._jobs.runner_token, "system_id": self._name, "last_update": self._last_update}
        answer = await self._client.ask("poll", "POST", "/jobs/request", json=body)
        if answer is None or answer.status != 201:
            # With this value the next request waits until there may be a job.
            self._last_update = "" if answer is None else answer.headers.get("X-GitLab-Last-Update", "")
            return
        variables = {variable["key"]: variable["value"] for variable in answer.json["variables"]}
        job = Job(answer.json["id"], answer.json["token"], variables[MARK])
        before = self._jobs.by_id.get(job.id)
        if before is None or before.heard or job.taken_at < before.taken_at + HAND_OUT_SECONDS:
            self.ledger.record("hand-out", job.id, "acknowledged")
            self._jobs.handed_out[str(job.id)] += 1
        self._jobs.by_id[job.id] = job
        await self._run(job)

    async def _run(self, job: Job) -> None:
        for number in range(PIECES):
            data = b"".join(b"%d/%d %x\n" % (job.id, number, self._random.getrandbits(64)) for _ in range(20))
            if not await self._append(job, data):
                return
        content = self._random.randbytes(self._random.randrange(1000, 60_000))
        job.artifact = archive({f"job {job.id}": content})
        if not await self._until_done("artifact upload", lambda: self._upload(job), done={201}):
            return
        start = time.monotonic()
        if await self._until_done("job end", lambda: self._end(job), done={200, 403}):
            job.finished = True
            self.ledger.succeeded("job", start)
            self.ledger.record("job", job.id, "acknowledged")

    async def _append(self, job: Job, data: bytes) -> bool:
        """Append a piece to the log, from the end that the service reports. Return whether the job still belongs to
        this runner."""
        start, job.log = len(job.log), job.log + data
        deadline = time.monotonic() + RUNNER_SECONDS
        while time.monotonic() < deadline:
            if self._was_taken(job):
                return False
            if start == len(job.log):
                return True
            headers = {"JOB-TOKEN": job.token, "Content-Range": f"{start}-{len(job.log) - 1}"}
            path, expected = f"/jobs/{job.id}/trace", {416} | self._refusals(job)
            options: dict[str, Any] = {"data": job.log[start:], "headers": headers, "expected": expected}
            answer = await self._client.ask("append", "PATCH", path, **options)
            if answer is None:
                await asyncio.sleep(RETRY_SECONDS)
            elif answer.status in (202, 416):
                job.heard = True
                start = int(answer.headers["Range"].removeprefix("0-"))
            else:
                return False
        self.ledger.find(f"job {job.id}: its log could not be added to for two minutes")
        return False

    def _was_taken(self, job: Job) -> bool:
        """Return whether another runner has the job now, because the service has not heard of this one for too long."""
        return self._jobs.by_id[job.id] is not job

    def _refusals(self, job: Job) -> set[int]:
        """Return the statuses with which the service may refuse a runner that it has not heard of in time."""
        late = not job.heard and time.monotonic() > job.taken_at + HAND_OUT_SECONDS
        return {401, 403, 404} if late or self._was_taken(job) else set()

    async def _upload(self, job: Job) -> Answer | None:
        form = aiohttp.FormData()
        form.add_field("file", io.BytesIO(job.artifact), filename="artifacts.zip")
        options: dict[str, Any] = {"data": form, "headers": {"JOB-TOKEN": job.token}}
        return await self._client.ask("upload", "POST", f"/jobs/{job.id}/artifacts", **options)

    async def _end(self, job: Job) -> Answer | None:
        """Report success. A repetition may be answered with 403, because the job has ended and the first answer was
        lost."""
        body = {"token": job.token, "state": "success"}
        expected = {202, 403} if job.ending else {202}
        job.ending = True
        return await self._client.ask("end", "PUT", f"/jobs/{job.id}", json=body, expected=expected)

    async def _until_done(self, description: str, ask: Any, done: set[int]) -> bool:
        """Repeat the request until its status is one of `done`; return whether it was. 202 means that the service is
        not ready yet."""
        deadline = time.monotonic() + RUNNER_SECONDS
        while time.monotonic() < deadline:
            answer = await ask()
            if answer is not None and answer.status in done:
                return True
            if answer is not None and answer.status != 202 and answer.status < 500:
                return False  # `Client.ask` has recorded it as a finding
            await asyncio.sleep(RETRY_SECONDS)
        self.ledger.find(f"{description} was not acknowledged for two minutes")
        return False


def _difference(answer: Answer | None, acknowledged: bytes) -> str:
    if answer is None:
        return "no answer"
    if answer.status != 200:
        return f"status {answer.status}, where {len(acknowledged)} bytes were acknowledged"
    same = next(
        (offset for offset, (a, b) in enumerate(zip(answer.body, acknowledged, strict=False)) if a != b), None
    )
    return f"{len(answer.body)} bytes for {len(acknowledged)}, the first other one at {same}"
