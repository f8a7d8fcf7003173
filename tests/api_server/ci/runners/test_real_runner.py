"""A third-party runner, gitlab-python-runner, works off a pipeline that a `git push` has made."""

import asyncio
import io
import subprocess
import venv
import zipfile
from pathlib import Path
from typing import Any

import gitlab
import pytest

from api_server.web.routes import Role
from tests.support.ci import CiProject, ci_project, eventually
from tests.support.forge import Forge
from tests.support.git_client import Git, git_url
from tests.support.runner import Runner, a_runner

#: Newer emulators do not have what the runner imports.
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
    """gitlab-python-runner in a virtual environment of its own, kept in pytest's cache."""
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
    """Starts the runner, which takes one job and ends: 0 where the job succeeded."""
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
    pipeline = (await eventually(lambda: _pipelines(project)))[0]

    assert await run_one_job(runner_program, tmp_path / "builds", runner) == 0
    assert await run_one_job(runner_program, tmp_path / "builds", runner) == 0
    statuses = await project.statuses(pipeline)
    assert (statuses["build"], statuses["test"], statuses["release"]) == ("success", "success", "manual")
    await eventually(lambda: _pipelines(other, "source=pipeline"))

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


async def _pipelines(project: CiProject, query: str = "source=push") -> list[dict[str, Any]]:
    return list((await project.forge.root.get(f"{project.url}/pipelines?{query}")).body)
