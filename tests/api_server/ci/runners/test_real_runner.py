"""Real conditions: a third-party runner runs a pipeline, and the API server is killed while runners work."""

import asyncio
import io
import random
import subprocess
import venv
import zipfile
from pathlib import Path
from typing import Any

import aiohttp
import attrs
import gitlab
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from api_server.web.routes import Role
from tests.api_server.ci.identity.verifying import Consumer
from tests.support.ci import CiProject, ci_project
from tests.support.forge import ROOT_TOKEN, Client, Forge
from tests.support.git_client import Git, git_url
from tests.support.runner import INFO, Runner, RunningJob, a_runner, checksum
from tests.support.server_process import ServerProcess, server_process
from tests.support.waiting import until

#: Newer emulators do not have the modules that the runner imports.
PACKAGES = ("gitlab-python-runner==14.3.20", "gitlab-emulator==0.11.1")

CONFIG = """
stages: [build, test, deploy]
variables: {WHO: alice}
build:
  stage: build
  script:
    - mkdir out
    - i=0;
      while [ $i -lt 2000 ]; do echo "$i is 100% of \\$WHO <b>&amp;</b> for $WHO"; i=$((i+1)); done | tee out/lines.txt
  artifacts: {paths: [out/]}
test:
  stage: test
  script:
    - wc -l out/lines.txt
    - test "$CI_COMMIT_REF_NAME" = main
release:
  stage: deploy
  when: manual
  script: [echo released by $GITLAB_USER_LOGIN]
other:
  stage: deploy
  trigger: {project: $OTHER_PROJECT}
"""


@pytest.fixture(scope="session")
def runner_program(request: pytest.FixtureRequest) -> Path:
    """The path of gitlab-python-runner in a virtual environment of its own, which is kept in pytest's cache."""
    folder = request.config.cache.mkdir("gitlab-python-runner")
    program = folder / "bin" / "gitlab-runner.py"
    if not (folder / "ready").exists():
        venv.create(folder, with_pip=True, clear=True)
        pip = [folder / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        done = subprocess.run([*pip, *PACKAGES], capture_output=True, text=True, timeout=120, check=False)
        if done.returncode != 0:
            pytest.skip(f"gitlab-python-runner cannot be installed here: {done.stderr.strip()[-300:]}")
        (folder / "ready").touch()
    return program


async def run_one_job(program: Path, folder: Path, runner: Runner) -> int:
    """Start the runner, which takes one job and ends; return 0 if the job succeeded."""
    folder.mkdir(exist_ok=True)
    (folder / "runner.yml").write_text(
        f"server: {runner.forge.base}\ndir: {folder}\nexecutor: shell\nshell: /bin/sh\ntoken: {runner.token}\n"
    )
    process = await asyncio.create_subprocess_exec(
        str(program.parent / "python"),
        str(program),
        "--start",
        "runner.yml",
        "--once",
        cwd=folder,
        env={"PATH": f"{program.parent}:/usr/bin:/bin", "HOME": str(folder), "LANG": "C.UTF-8"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await asyncio.wait_for(process.communicate(), 30)
    print(output.decode())  # noqa: T201 - shown when the test fails
    return process.returncode or 0


async def test_a_pushed_pipeline_is_worked_off_by_a_real_runner(
    forge: Forge, runner_program: Path, tmp_path: Path
) -> None:
    project, other = await ci_project(forge), await ci_project(forge, visibility="public")
    await other.commit("noop: {script: 'true'}", branch="main")
    runner = await a_runner(forge, project_id=project.id)
    owner = await forge.new_member(project.id, Role.OWNER, "owner")
    await forge.member("projects", other.id, owner, Role.OWNER)
    git = Git(tmp_path / "clone")
    git.folder.mkdir()
    await git("clone", "--quiet", git_url(forge, project.path, owner), ".")
    await git.commit_files({".gitlab-ci.yml": CONFIG.replace("$OTHER_PROJECT", other.path)})
    await git("push", "--quiet", "origin", "HEAD:main")
    pipeline = (await until(lambda: _pipelines(project)))[0]

    assert await run_one_job(runner_program, tmp_path / "builds", runner) == 0
    assert await run_one_job(runner_program, tmp_path / "builds", runner) == 0
    statuses = await project.statuses(pipeline)
    assert (statuses["build"], statuses["test"], statuses["release"]) == ("success", "success", "manual")
    await until(lambda: _pipelines(other, "source=pipeline"))

    client = gitlab.Gitlab(forge.base, private_token=owner.token)
    jobs = await project.jobs(pipeline)

    def through_python_gitlab() -> tuple[bytes, bytes, bytes]:
        job = client.projects.get(project.id).jobs.get(jobs["build"]["id"])
        streamed = b"".join(job.trace(iterator=True, chunk_size=4096))
        assert streamed == job.trace()
        return streamed, job.artifacts(), job.artifact("out/lines.txt")

    log, archive, lines = await asyncio.to_thread(through_python_gitlab)
    expected = "".join(f"{i} is 100% of $WHO <b>&amp;</b> for alice\n" for i in range(2000)).encode()
    assert lines == expected
    assert zipfile.ZipFile(io.BytesIO(archive)).read("out/lines.txt") == expected
    assert expected in log

    await owner.api.post(f"{project.url}/jobs/{jobs['release']['id']}/play", expect=200)
    code = await run_one_job(runner_program, tmp_path / "builds", runner)
    log = await owner.api.get(f"{project.url}/jobs/{jobs['release']['id']}/trace")
    assert code == 0, log.body
    assert f"released by {owner.username}" in log.body


IDENTITY = """
sign in:
  id_tokens: {TOKEN: {aud: $CONSUMER}}
  script:
    - echo "The token has ${#TOKEN} characters."
    - python -c 'import os, urllib.request as web;
      print(web.urlopen(os.environ["CONSUMER"], os.environ["TOKEN"].encode()).read().decode())'
    - echo "$TOKEN"
"""


async def test_a_job_signs_in_elsewhere_with_its_identity_token(
    forge: Forge, runner_program: Path, tmp_path: Path
) -> None:
    tokens: list[str] = []

    async def sign_in(request: web.Request) -> web.Response:
        tokens.append(await request.text())
        said = await Consumer(forge.base, str(request.url)).claims(tokens[-1])
        return web.Response(text=f"Hello {said['sub']}")

    app = web.Application()
    app.router.add_post("/", sign_in)
    async with TestServer(app) as server:
        project = await ci_project(forge)
        await forge.root.post(
            f"{project.url}/variables", {"key": "CONSUMER", "value": str(server.make_url("/"))}, expect=201
        )
        job = await project.job(IDENTITY)
        runner = await a_runner(forge, project_id=project.id)
        code = await run_one_job(runner_program, tmp_path / "builds", runner)
    log = (await forge.root.get(f"{project.url}/jobs/{job['id']}/trace")).body
    assert code == 0, log
    (token,) = tokens
    assert f"The token has {len(token)} characters." in log
    assert f"Hello project_path:{project.path}:ref_type:branch:ref:topic" in log
    assert token not in log


COMPONENTS = {
    "greet": {
        "templates/hello.yml": """
spec:
  component: [name, version, sha]
  inputs:
    job: {default: greet}
    whom: {description: Who is greeted, regex: '^[A-Z]'}
    times: {type: number, default: 1, options: [1, 2, 3]}
---
include:
  - {local: ci/shared.yml, inputs: {branch: $CI_COMMIT_REF_NAME}}
  - {component: $CI_SERVER_FQDN/PREPARE/folder@~latest, inputs: {folder: out}}
$[[ inputs.job ]]:
  extends: [.shared, .folder]
  script:
    - i=0; while [ $i -lt $[[ inputs.times ]] ]; do echo hello $[[ inputs.whom | posix_escape ]]; i=$((i+1)); done
    - echo I am $[[ component.name ]] $[[ component.version ]]
    - echo written >out/$[[ component.sha | truncate(0, 8) ]]
""",
        "ci/shared.yml": """
spec: {inputs: {branch: }}
---
.shared:
  variables: {BRANCH: '$[[ inputs.branch | expand_vars ]]'}
  after_script: ['echo on $BRANCH']
""",
    },
    "prepare": {
        "templates/folder/template.yml": """
spec: {inputs: {folder: {default: tmp}}}
---
.folder:
  before_script: ['mkdir -p $[[ inputs.folder ]]']
  artifacts: {paths: ['$[[ inputs.folder ]]/']}
""",
    },
    "check": {
        "templates/list.yml": """
spec: {inputs: {needs: {type: array}}}
---
list:
  stage: deploy
  needs: $[[ inputs.needs ]]
  script: ['echo found $(cat out/*)']
""",
        "templates/unused.yml": "unused: {script: 'false'}",
    },
}
#: In a child pipeline, because this runner reads the CI file itself if its job is in it.
USING = """
child:
  trigger:
    include:
      - component: $CI_SERVER_FQDN/GREET/hello@1
        inputs: {whom: Ada & Bob, times: 2}
      - component: $CI_SERVER_FQDN/CHECK/list@SHA
        inputs: {needs: [greet]}
"""


async def test_components_of_three_projects_are_jobs_that_a_real_runner_runs(
    forge: Forge, runner_program: Path, tmp_path: Path
) -> None:
    project = await ci_project(forge)
    libraries = {name: await ci_project(forge, visibility="public") for name in COMPONENTS}
    shas: dict[str, str] = {}
    for name, library in libraries.items():
        for path, text in COMPONENTS[name].items():
            await library.commit(text.replace("PREPARE", libraries["prepare"].path), path=path, branch="main")
        branch = await forge.root.get(f"{library.url}/repository/branches/main", expect=200)
        shas[name] = branch.body["commit"]["id"]
        for tag in ("1.0.0", "v1.2.0", "2.0.0-rc1"):
            body = {"tag_name": tag, "ref": shas[name]}
            await forge.root.post(f"{library.url}/releases", body, expect=201)
    using = USING.replace("GREET", libraries["greet"].path).replace("CHECK/", f"{libraries['check'].path}/")
    runner = await a_runner(forge, project_id=project.id)
    parent = await project.pipeline(using.replace("SHA", shas["check"]), branch="main", by=forge.root)

    async def child() -> Any:
        return (await project.bridges(parent))["child"]["downstream_pipeline"]

    pipeline = await until(child)
    jobs = await project.jobs(pipeline)
    assert set(jobs) == {"greet", "list"}

    code = await run_one_job(runner_program, tmp_path / "builds", runner)
    assert code == 0, (await forge.root.get(f"{project.url}/jobs/{jobs['greet']['id']}/trace")).body
    assert await run_one_job(runner_program, tmp_path / "builds", runner) == 0
    assert await project.statuses(pipeline) == {"greet": "success", "list": "success"}
    greeted, listed = [
        str((await forge.root.get(f"{project.url}/jobs/{jobs[name]['id']}/trace")).body).splitlines()
        for name in ("greet", "list")
    ]
    assert greeted.count("hello Ada & Bob") == 2
    assert {"I am hello v1.2.0", "on main"} <= set(greeted)
    assert "found written" in listed
    archive = await forge.root.get(
        f"{project.url}/jobs/{jobs['greet']['id']}/artifacts/out/{shas['greet'][:8]}"
    )
    assert (archive.status, archive.body) == (200, "written\n")


#: This runner reads the file itself, and treats every need as one of the same file.
USE = """
make: {stage: build, script: 'false', rules: [{if: $NEVER}]}
use:
  script: [cat made.txt]
  needs: [{project: $WHERE, job: make, ref: $CI_COMMIT_BRANCH, artifacts: true}]
"""
MAKE = """
make:
  script: [echo made elsewhere > made.txt]
  artifacts: {paths: [made.txt]}
"""


async def test_artifacts_of_another_project_are_fetched_with_the_right_and_not_without(
    forge: Forge, runner_program: Path, tmp_path: Path
) -> None:
    here, there = await ci_project(forge), await ci_project(forge)
    await forge.member("projects", there.id, here.developer, Role.REPORTER)
    runners = {project.id: await a_runner(forge, project_id=project.id) for project in (here, there)}
    await there.pipeline(MAKE)
    assert await run_one_job(runner_program, tmp_path / "there", runners[there.id]) == 0
    variables = [{"key": "WHERE", "value": there.path}]

    refused = await here.job(USE, variables=variables)
    assert (await runners[here.id].poll()).status == 204
    shown = (await here.api.get(f"{here.url}/jobs/{refused['id']}")).body
    assert (shown["status"], shown["failure_reason"]) == ("failed", "missing_dependency_failure")

    allowlist = f"{there.url}/job_token_scope/allowlist"
    await forge.root.post(allowlist, {"target_project_id": here.id}, expect=201)
    again = (await here.api.post(f"{here.url}/jobs/{refused['id']}/retry", expect=201)).body
    code = await run_one_job(runner_program, tmp_path / "here", runners[here.id])
    log = (await here.api.get(f"{here.url}/jobs/{again['id']}/trace")).body
    assert (code, "made elsewhere" in log) == (0, True), log


async def _pipelines(project: CiProject, query: str = "source=push") -> list[dict[str, Any]]:
    return list((await project.forge.root.get(f"{project.url}/pipelines?{query}")).body)


JOBS = 6
MANY_JOBS = "".join(f"job{number}: {{script: 'true'}}\n" for number in range(JOBS))


@attrs.define
class Sender:
    """A job of a runner. `log` is everything that was sent, of which `acknowledged` bytes are acknowledged."""

    job: RunningJob
    random: random.Random
    log: bytes = b""
    acknowledged: int = 0

    async def send(self, until: asyncio.Event) -> None:
        """Append piece after piece until the event is set or the server has ended."""
        while not until.is_set():
            if self.acknowledged == len(self.log):
                self.log += self.random.randbytes(self.random.choice([1, 200, 20_000]))
            try:
                answer = await self.job.append(self.log[self.acknowledged :], self.acknowledged)
            except (aiohttp.ClientError, ConnectionError):
                return
            assert answer.status in (202, 416), answer
            acknowledged = int(answer.headers["Range"].removeprefix("0-"))
            assert acknowledged >= self.acknowledged, "acknowledged bytes are gone"
            self.acknowledged = acknowledged


async def test_acknowledged_bytes_survive_kill_9_once(new_database: Any, tmp_path: Path) -> None:
    async with server_process(new_database(), tmp_path) as server:
        project, runner = await _project_with_jobs(server)
        senders = [Sender(await _taken(server, runner), random.Random(n)) for n in range(JOBS)]
        stop = asyncio.Event()
        sending = asyncio.gather(*(sender.send(stop) for sender in senders))
        while sum(sender.acknowledged for sender in senders) < 300_000:
            await asyncio.sleep(0.05)
        server.kill()
        await server.wait()
        await sending
        await server.start()
        before = sum(sender.acknowledged for sender in senders)
        resumed = asyncio.gather(*(sender.send(stop) for sender in senders))
        await until(lambda: sum(sender.acknowledged for sender in senders) > before)
        stop.set()
        await resumed
        assert len({sender.job.id for sender in senders}) == JOBS
        assert (await _poll(server, runner))[0] == 204
        await asyncio.gather(*(_check(server, project, sender) for sender in senders))
        shown = (await server.root.get(f"/projects/{project}/jobs?per_page=100")).body
        assert [job["status"] for job in shown] == ["success"] * JOBS


async def _project_with_jobs(server: ServerProcess) -> tuple[int, str]:
    """Return a project's id, with JOBS pending jobs in it, and the token of a runner for them."""
    project = (await server.root.post("/projects", {"name": "crash"})).body["id"]
    files = f"/projects/{project}/repository/files/%2Egitlab-ci%2Eyml"
    body = {"branch": "main", "content": MANY_JOBS, "commit_message": "Begin [ci skip]"}
    assert (await server.root.post(files, body)).status == 201
    assert (await server.root.post(f"/projects/{project}/pipeline", {"ref": "main"})).status == 201
    made = await server.root.post("/user/runners", {"runner_type": "project_type", "project_id": project})
    return project, made.body["token"]


async def _poll(server: ServerProcess, token: str) -> tuple[int, Any]:
    answer = await server.root.post("/jobs/request", {"token": token, "info": INFO})
    return answer.status, answer.body


async def _taken(server: ServerProcess, token: str) -> RunningJob:
    status, payload = await _poll(server, token)
    assert status == 201
    return RunningJob(Client(server.session, server.base), payload)


async def _check(server: ServerProcess, project: int, sender: Sender) -> None:
    """Send the rest of the log, end the job, and check that the log is what was sent."""
    if sender.acknowledged < len(sender.log):
        answer = await sender.job.append(sender.log[sender.acknowledged :], sender.acknowledged)
        assert answer.status == 202
    await sender.job.finish(output=checksum(sender.log))
    url = f"{server.base}/api/v4/projects/{project}/jobs/{sender.job.id}/trace"
    async with server.session.get(url, headers={"PRIVATE-TOKEN": ROOT_TOKEN}) as answer:
        assert await answer.read() == sender.log
