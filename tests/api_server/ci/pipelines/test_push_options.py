"""`git push -o ci.skip` and `-o ci.variable=...`."""

import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api_server.ci.pipelines.tasks import PushOptions, push_options
from api_server.code import refs
from api_server.git.received_push import Push, RefUpdate
from api_server.git.ref_names import NO_COMMIT
from api_server.git.repositories import REPOSITORIES
from api_server.web.context import SERVICES
from tests.support.ci import CiProject, ci_project, eventually
from tests.support.forge import Forge
from tests.support.git_client import Git, git_url
from tests.support.merge_requests import head_of

FILE = ".gitlab-ci.yml"
TEXT = "build:\n  script: echo\n  rules: [{if: '$FLAVOR != \"none\"'}]\n"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], PushOptions()),
        (["ci.skip"], PushOptions(skip=True)),
        (["ci.skip=true"], PushOptions(skip=True)),
        (["ci.skipped", "ci.variables=A=b", "merge_request.create"], PushOptions()),
        (["ci.variable=A=b=c", "ci.variable=EMPTY="], PushOptions(variables={"A": "b=c", "EMPTY": ""})),
        (["ci.variable=A=1", "ci.variable=A=2"], PushOptions(variables={"A": "2"})),
        (["ci.variable=A", "ci.variable==b", "ci.variable=a b=c", "ci.variable=A=\0"], PushOptions()),
    ],
)
def test_what_options_mean(options: list[str], expected: PushOptions) -> None:
    assert push_options(options) == expected


@given(
    st.dictionaries(
        st.from_regex(r"[A-Za-z0-9_]{1,20}", fullmatch=True), st.text().filter(lambda v: "\0" not in v)
    )
)
def test_every_variable_arrives_as_it_was_written(variables: dict[str, str]) -> None:
    assert (
        push_options(f"ci.variable={key}={value}" for key, value in variables.items()).variables == variables
    )


async def push(project: CiProject, folder: Path, *options: str, branch: str = "topic") -> str:
    git = Git(folder)
    await git.init()
    sha = await git.commit_files({FILE: TEXT})
    url = git_url(project.forge, project.path, project.developer)
    arguments = [argument for option in options for argument in ("-o", option)]
    await git("push", "--quiet", "--force", *arguments, url, f"HEAD:refs/heads/{branch}")
    return sha


async def pipeline_of(project: CiProject, sha: str) -> dict[str, Any]:
    async def made() -> Any:
        return (await project.api.get(f"{project.url}/pipelines?sha={sha}")).body

    (found,) = await eventually(made)
    return dict(found)


async def test_ci_skip_makes_a_skipped_pipeline(forge: Forge, tmp_path: Path) -> None:
    project = await ci_project(forge)
    pipeline = await pipeline_of(project, await push(project, tmp_path / "work", "ci.skip"))
    assert pipeline["status"] == "skipped"
    assert await project.jobs(pipeline) == {}


async def test_ci_variables_are_the_pipelines(forge: Forge, tmp_path: Path) -> None:
    """Stored encrypted on every way, and obeyed by rules."""
    project = await ci_project(forge)
    sha = await push(project, tmp_path / "work", "ci.variable=FLAVOR=a b=c", "ci.variable=OTHER=x")
    pipeline = await pipeline_of(project, sha)
    variables = (await project.api.get(f"{project.url}/pipelines/{pipeline['id']}/variables")).body
    assert [(one["key"], one["value"]) for one in variables] == [("FLAVOR", "a b=c"), ("OTHER", "x")]
    queued = await forge.database.value(
        "SELECT args::text FROM procrastinate_jobs WHERE args ->> 'sha' = %(sha)s", sha=sha
    )
    assert "FLAVOR" not in (queued or "")


async def test_a_push_that_was_left_unsettled_keeps_its_options(forge: Forge) -> None:
    """They are stored encrypted until then."""
    project = await ci_project(forge)
    await project.commit(TEXT, message="Run")
    sha = await head_of(project.api, {"id": project.id}, "topic")
    app = forge.server.app
    app[SERVICES][REPOSITORIES].open(project.id).references.create("refs/tags/v1", sha)
    pushed = Push(
        id=f"push-{sha}",
        updates=(RefUpdate(NO_COMMIT, sha, "refs/tags/v1"),),
        options=("ci.variable=FLAVOR=sweet",),
    )
    await refs.propose(app[SERVICES], project.id, project.developer.id, pushed)
    stored = await forge.database.value("SELECT options FROM pushes WHERE id = %(id)s", id=pushed.id)
    assert b"sweet" not in bytes(stored)
    await refs.settle_leftovers(app[SERVICES], datetime.datetime.now(datetime.UTC))

    async def made() -> Any:
        return (await project.api.get(f"{project.url}/pipelines?ref=v1")).body

    (pipeline,) = await eventually(made)
    variables = (await project.api.get(f"{project.url}/pipelines/{pipeline['id']}/variables")).body
    assert [(one["key"], one["value"]) for one in variables] == [("FLAVOR", "sweet")]
