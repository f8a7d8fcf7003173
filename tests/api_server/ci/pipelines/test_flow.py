"""From a commit to the end of a pipeline: the order of jobs, cancellation, and the pipelines that it starts."""

from typing import Any

import attrs
import pytest

from api_server.ci.pipelines import tasks, transitions
from api_server.ci.pipelines.creation import PipelineMaker, PipelineRequest, pipeline_maker
from api_server.web.context import SERVICES
from api_server.web.routes import Role
from tests.support.ci import MANUAL_JOB, CiProject, bring, ci_project, happen, run
from tests.support.forge import Forge, new_name
from tests.support.waiting import until

THREE_STAGES = """
stages: [build, test, deploy]
compile: {stage: build, script: make}
unit: {stage: test, script: make test}
lint: {stage: test, script: make lint, allow_failure: true}
release: {stage: deploy, script: make release, when: manual}
"""
BY_OUTCOME = """
stages: [build, after]
compile: {stage: build, script: make}
on success: {stage: after, script: echo}
on failure: {stage: after, script: echo, when: on_failure}
always: {stage: after, script: echo, when: always}
"""


async def ids(project, pipeline) -> dict[str, int]:
    return {name: job["id"] for name, job in (await project.jobs(pipeline)).items()}


async def finish(project, job_id: int, event: str = "success", **values) -> None:
    """Take the job as a runner, and bring it to its end."""
    await run(project.forge, job_id)
    await happen(project.forge, job_id, event, **values)


async def is_pending(project, job_id: int) -> bool:
    return (await project.api.get(f"{project.url}/jobs/{job_id}")).body["status"] == "pending"


async def test_jobs_of_a_stage_wait_for_the_stages_before(project):
    pipeline = await project.pipeline(THREE_STAGES)
    assert pipeline["status"] == "pending"
    assert await project.statuses(pipeline) == {
        "compile": "pending", "unit": "created", "lint": "created", "release": "created"
    }  # fmt: skip
    job = await ids(project, pipeline)
    await run(project.forge, job["compile"])
    assert await project.status(pipeline) == "running"
    await happen(project.forge, job["compile"], "success")
    assert await project.statuses(pipeline) == {
        "compile": "success", "unit": "pending", "lint": "pending", "release": "created"
    }  # fmt: skip
    await finish(project, job["unit"])
    await finish(project, job["lint"], "drop", failure_reason="script_failure")
    assert (await project.statuses(pipeline))["release"] == "manual"
    assert await project.status(pipeline) == "success"


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        ("success", {"on success": "pending", "on failure": "skipped", "always": "pending"}),
        ("drop", {"on success": "skipped", "on failure": "pending", "always": "pending"}),
    ],
)
async def test_when_decides_by_the_outcome_of_what_came_before(project, event, expected):
    pipeline = await project.pipeline(BY_OUTCOME)
    await finish(project, (await ids(project, pipeline))["compile"], event)
    assert {name: (await project.statuses(pipeline))[name] for name in expected} == expected


async def test_a_manual_job_that_may_not_fail_holds_up_what_comes_after(project):
    pipeline = await project.pipeline(
        "stages: [a, b]\ngate: {stage: a, script: echo, when: manual, allow_failure: false}\n"
        "next: {stage: b, script: echo}\n"
    )
    assert await project.statuses(pipeline) == {"gate": "manual", "next": "created"}
    assert await project.status(pipeline) == "manual"
    gate = (await ids(project, pipeline))["gate"]
    assert (await project.api.post(f"{project.url}/jobs/{gate}/play")).body["status"] == "pending"
    await finish(project, gate)
    assert (await project.statuses(pipeline))["next"] == "pending"


async def test_needs_go_past_stages_and_a_skipped_need_skips(project):
    pipeline = await project.pipeline("""
stages: [a, b, c]
fast: {stage: a, script: echo}
slow: {stage: a, script: echo}
after fast: {stage: b, script: echo, needs: [fast]}
at once: {stage: c, script: echo, needs: []}
optional: {stage: a, script: echo, when: manual}
after optional: {stage: b, script: echo, needs: [optional]}
""")
    assert await project.statuses(pipeline) == {
        "fast": "pending", "slow": "pending", "after fast": "created", "at once": "pending", "optional": "manual",
        "after optional": "skipped",
    }  # fmt: skip
    job = await ids(project, pipeline)
    await finish(project, job["fast"])
    assert (await project.statuses(pipeline))["after fast"] == "pending"
    await project.api.post(f"{project.url}/jobs/{job['optional']}/play")
    assert (await project.statuses(pipeline))["after optional"] == "created"
    await finish(project, job["optional"])
    assert (await project.statuses(pipeline))["after optional"] == "pending"


async def test_retry_gives_what_was_skipped_its_turn_again(project):
    """4.4."""
    pipeline = await project.pipeline(THREE_STAGES)
    job = await ids(project, pipeline)
    await finish(project, job["compile"], "drop")
    assert await project.status(pipeline) == "failed"
    assert await project.statuses(pipeline) == {
        "compile": "failed", "unit": "skipped", "lint": "skipped", "release": "skipped"
    }  # fmt: skip
    again = (await project.forge.root.post(f"{project.url}/jobs/{job['compile']}/retry")).body
    assert await project.statuses(pipeline) == {
        "compile": "pending", "unit": "created", "lint": "created", "release": "created"
    }  # fmt: skip
    jobs = await project.jobs(pipeline)
    assert {jobs[name]["user"]["username"] for name in ("compile", "unit")} == {"root"}
    await finish(project, again["id"])
    assert (await project.statuses(pipeline))["unit"] == "pending"


async def test_a_job_is_retried_by_itself_as_often_as_its_file_says(project):
    pipeline = await project.pipeline(
        "flaky:\n  script: echo\n  retry: {max: 2, when: [runner_system_failure, script_failure]}\n"
    )
    seen = []
    for reason in ("script_failure", "runner_system_failure", "script_failure"):
        job = (await project.jobs(pipeline))["flaky"]
        seen.append(job["id"])
        assert job["user"]["id"] == project.developer.id
        await finish(project, job["id"], "drop", failure_reason=reason)
    assert len(set(seen)) == 3
    assert await project.status(pipeline) == "failed"
    everything = await project.api.get(f"{project.url}/pipelines/{pipeline['id']}/jobs?include_retried=true")
    assert [job["status"] for job in everything.body] == ["failed"] * 3


async def test_a_failure_that_retry_does_not_name_is_final(project):
    pipeline = await project.pipeline("flaky:\n  script: echo\n  retry: {max: 2, when: script_failure}\n")
    await finish(
        project, (await ids(project, pipeline))["flaky"], "drop", failure_reason="job_execution_timeout"
    )
    assert await project.status(pipeline) == "failed"


async def test_an_exit_code_that_retry_names_is_one_to_start_again_after(project):
    pipeline = await project.pipeline("flaky:\n  script: echo\n  retry: {max: 2, exit_codes: 137}\n")
    for exit_code, status in ((137, "pending"), (1, "failed")):
        job_id = (await ids(project, pipeline))["flaky"]
        await finish(project, job_id, "drop", failure_reason="script_failure", exit_code=exit_code)
        assert await project.status(pipeline) == status


async def test_exit_codes_that_are_allowed_make_an_allowed_failure(project):
    text = "lint:\n  script: echo\n  allow_failure: {exit_codes: [3, 137]}\n"
    for exit_code, status in ((137, "success"), (1, "failed")):
        pipeline = await project.pipeline(text)
        job_id = (await ids(project, pipeline))["lint"]
        await finish(project, job_id, "drop", failure_reason="script_failure", exit_code=exit_code)
        assert await project.status(pipeline) == status
        assert (await project.jobs(pipeline))["lint"]["allow_failure"] == (status == "success")


async def test_a_failure_that_was_allowed_is_not_so_beforehand_when_the_job_runs_again(project):
    job = await project.job("lint:\n  script: echo\n  allow_failure: {exit_codes: 3}\n")
    await finish(project, job["id"], "drop", failure_reason="script_failure", exit_code=3)
    again = (await project.api.post(f"{project.url}/jobs/{job['id']}/retry")).body
    assert again["allow_failure"] is False


async def test_jobs_of_a_resource_group_run_one_after_the_other_in_their_order(project):
    """4.2: enqueue of a job with a resource_group, across pipelines."""
    text = "deploy:\n  script: echo\n  resource_group: production\n"
    pipelines = [await project.pipeline(text) for _ in range(3)]
    first, second, third = [(await ids(project, pipeline))["deploy"] for pipeline in pipelines]

    await until(lambda: is_pending(project, first))
    assert await project.status(pipelines[1]) == "waiting_for_resource"
    await finish(project, first, "drop")
    await until(lambda: is_pending(project, second))
    assert not await is_pending(project, third)
    await project.api.post(f"{project.url}/jobs/{second}/cancel")
    await until(lambda: is_pending(project, third))


async def test_a_job_that_runs_its_after_script_still_holds_its_resource(project):
    text = "deploy:\n  script: echo\n  resource_group: canceling\n"
    first, second = [await project.job(text) for _ in range(2)]
    await until(lambda: is_pending(project, first["id"]))
    await bring(project.forge, first["id"], "canceling")
    async with project.forge.database.transaction() as transaction:
        await transitions.assign_resource(transaction, project.id, "canceling")
    assert not await is_pending(project, second["id"])


async def test_a_deleted_pipeline_gives_back_what_its_jobs_held(project):
    text = "deploy:\n  script: echo\n  resource_group: staging\n"
    first = await project.pipeline(text)
    holder = (await ids(project, first))["deploy"]
    await until(lambda: is_pending(project, holder))
    waiting = await project.job(text)
    assert (await project.forge.root.delete(f"{project.url}/pipelines/{first['id']}")).status == 204
    await until(lambda: is_pending(project, waiting["id"]))


async def test_a_delayed_job_starts_when_its_moment_has_come(project):
    pipeline = await project.pipeline(
        "soon:\n  script: echo\n  when: delayed\n  start_in: 1 second\n"
        "late:\n  script: echo\n  when: delayed\n  start_in: 2 hours\n"
        "child:\n  trigger: {include: child.yml}\n  rules: [{when: delayed, start_in: 1 second}]\n"
    )
    assert set((await project.statuses(pipeline)).values()) == {"scheduled"}
    assert await project.status(pipeline) == "scheduled"

    async def has_run() -> bool:
        statuses = await project.statuses(pipeline)
        return (statuses["soon"], statuses["child"]) == ("pending", "failed")  # the file does not exist

    await until(has_run)
    assert (await project.statuses(pipeline))["late"] == "scheduled"


async def test_canceling_a_pipeline_cancels_all_that_has_not_finished_and_retrying_runs_it_again(project):
    pipeline = await project.pipeline(THREE_STAGES)
    job = await ids(project, pipeline)
    await finish(project, job["compile"])
    where = f"{project.url}/pipelines/{pipeline['id']}"
    canceled = await project.api.post(f"{where}/cancel")
    assert (canceled.status, canceled.body["status"]) == (200, "canceled")
    assert await project.statuses(pipeline) == {
        "compile": "success", "unit": "canceled", "lint": "canceled", "release": "canceled"
    }  # fmt: skip
    retried = await project.api.post(f"{where}/retry")
    assert (retried.status, retried.body["status"]) == (201, "running")
    assert await project.statuses(pipeline) == {
        "compile": "success", "unit": "pending", "lint": "pending", "release": "created"
    }  # fmt: skip
    assert (await ids(project, pipeline))["compile"] == job["compile"]


TWO = "first: {script: echo, interruptible: true}\nlast: {script: echo}\n"


async def pushed(project: CiProject, text: str, message: str) -> dict[str, Any]:
    """Return the pipeline of a push."""
    await project.commit(text, message=message)
    return dict((await project.api.get(f"{project.url}/pipelines?source=push")).body[0])


@pytest.mark.parametrize(
    ("on_new_commit", "started", "left"),
    [
        ("conservative", None, {"first": "canceled", "last": "canceled"}),
        ("conservative", "first", {"first": "canceled", "last": "canceled"}),
        ("conservative", "last", {"first": "pending", "last": "running"}),
        ("interruptible", "first", {"first": "canceled", "last": "pending"}),
        ("interruptible", "last", {"first": "canceled", "last": "running"}),
        ("none", None, {"first": "pending", "last": "pending"}),
    ],
)
async def test_a_newer_commit_cancels_what_the_older_ones_file_lets_it(
    forge: Forge, on_new_commit: str, started: str | None, left: dict[str, str]
) -> None:
    project = await ci_project(forge)
    text = f"workflow: {{auto_cancel: {{on_new_commit: {on_new_commit}}}}}\n{TWO}"
    older = await pushed(project, text, "One")
    asked_for = await project.api.post(f"{project.url}/pipeline", {"ref": "topic"})
    if started:
        await run(forge, (await project.jobs(older))[started]["id"])
    newer = await pushed(project, f"{text}#\n", "Two")
    assert await project.statuses(older) == left
    assert await project.statuses(newer) == {"first": "pending", "last": "pending"}
    assert await project.statuses(asked_for.body) == {"first": "pending", "last": "pending"}


async def test_where_a_project_cancels_nothing_its_files_change_nothing_of_that(forge: Forge) -> None:
    project = await ci_project(forge, auto_cancel_pending_pipelines="disabled")
    older = await pushed(project, TWO, "One")
    await pushed(project, f"{TWO}#\n", "Two")
    assert await project.statuses(older) == {"first": "pending", "last": "pending"}


async def test_the_newest_commit_keeps_its_pipeline_when_an_older_ones_is_made_later(forge: Forge) -> None:
    """Both are planned at the same time, and one may take longer."""
    project = await ci_project(forge)
    older = await pushed(project, TWO, "One")
    newer = await pushed(project, f"{TWO}#\n", "Two")
    late = {"ref": "topic", "sha": older["sha"], "before_sha": "0" * 40, "user_id": project.developer.id}
    await tasks.create_pipeline(
        forge.server.app[SERVICES], project_id=project.id, origin=new_name("late"), **late
    )
    (made, second, first) = (await project.api.get(f"{project.url}/pipelines?source=push")).body
    assert (made["sha"], second["id"], first["id"]) == (older["sha"], newer["id"], older["id"])
    assert await project.status(newer) == "pending"


async def test_a_commit_without_a_pipeline_cancels_nothing(forge: Forge) -> None:
    project = await ci_project(forge)
    older = await pushed(project, TWO, "One")
    await project.commit("1", path="else.txt")  # this push is skipped
    assert await project.status(older) == "pending"
    other = await pushed(project, "last: {script: echo, only: [tags]}\n", "Two")
    assert (other["status"], await project.status(older)) == ("skipped", "pending")


RETRIED = """
workflow: {auto_cancel: {on_job_failure: all}}
one: {script: echo, retry: 1}
two: {script: echo}
three: {script: echo}
may: {script: echo, allow_failure: true}
"""


async def test_a_job_that_fails_for_good_cancels_the_others(forge: Forge) -> None:
    """A job that is allowed to fail, or that is retried, does not."""
    project = await ci_project(forge)
    pipeline = await project.pipeline(RETRIED)
    jobs = await project.jobs(pipeline)
    for name in ("one", "two", "may"):
        await run(forge, jobs[name]["id"])
    await bring(forge, jobs["three"]["id"], "success")
    for name in ("may", "one"):
        await happen(forge, jobs[name]["id"], "drop", failure_reason="script_failure")
    running = {"one": "pending", "two": "running", "three": "success", "may": "failed"}
    assert await project.statuses(pipeline) == running
    again = (await project.jobs(pipeline))["one"]["id"]
    await run(forge, again)
    await happen(forge, again, "drop", failure_reason="script_failure")
    assert await project.statuses(pipeline) == running | {"one": "failed", "two": "canceled"}
    assert await project.status(pipeline) == "failed"


async def test_a_failure_that_nothing_is_said_of_cancels_nothing(forge: Forge) -> None:
    project = await ci_project(forge)
    pipeline = await project.pipeline(TWO)
    job = (await project.jobs(pipeline))["first"]["id"]
    await run(forge, job)
    await happen(forge, job, "drop", failure_reason="script_failure")
    assert await project.statuses(pipeline) == {"first": "failed", "last": "pending"}


async def test_a_child_pipeline_is_started_and_its_outcome_taken_over(forge):
    project = await ci_project(forge)
    await project.commit("inner:\n  script: echo $COLOR\n", path="child.yml")
    pipeline = await project.pipeline(
        "stages: [a, b]\nchild:\n  stage: a\n  variables: {COLOR: red}\n"
        "  trigger: {include: child.yml, strategy: depend}\nnext: {stage: b, script: echo}\n"
    )

    async def downstream():
        return (await project.bridges(pipeline))["child"]["downstream_pipeline"]

    child = await until(downstream)
    found = (child["project_id"], child["source"], child["sha"])
    assert found == (project.id, "parent_pipeline", pipeline["sha"])
    variables = await project.api.get(f"{project.url}/pipelines/{child['id']}/variables")
    assert variables.body == [{"variable_type": "env_var", "key": "COLOR", "value": "red", "raw": False}]

    async def listed(query: str) -> list[int]:
        return [one["id"] for one in (await project.api.get(f"{project.url}/pipelines?{query}")).body]

    assert child["id"] not in await listed("")
    assert pipeline["id"] in await listed("scope=branches")
    assert await listed("source=parent_pipeline") == [child["id"]]
    assert await listed("source=parent_pipeline&scope=branches") == [child["id"]]
    assert child["id"] not in await listed(f"ref={pipeline['ref']}")

    async def bridge_is(status: str) -> bool:
        return (await project.statuses(pipeline))["child"] == status

    await until(lambda: bridge_is("running"))
    inner = (await project.jobs(child))["inner"]
    await run(forge, inner["id"])
    await happen(forge, inner["id"], "drop", failure_reason="script_failure")
    await until(lambda: bridge_is("failed"))
    assert (await project.statuses(pipeline))["next"] == "skipped"
    again = (await project.api.post(f"{project.url}/jobs/{inner['id']}/retry")).body
    await until(lambda: bridge_is("running"))
    await run(forge, again["id"])
    await happen(forge, again["id"], "success")
    await until(lambda: bridge_is("success"))
    assert await project.statuses(pipeline) == {"child": "success", "next": "pending"}


async def test_variables_of_a_bridge_are_expanded_where_it_is(forge: Forge) -> None:
    """Masked and file variables are expanded too: a bridge that passes a secret on by name means to do so."""
    here, there = await ci_project(forge), await ci_project(forge, visibility="public")
    await there.commit(MANUAL_JOB, branch="main")
    await forge.member("projects", there.id, here.developer, Role.MAINTAINER)
    for key, value, kind in (("SECRET", "sec$ret-1", "env_var"), ("FILE", "content", "file")):
        body = {"key": key, "value": value, "masked": kind == "env_var", "raw": True, "variable_type": kind}
        await forge.root.post(f"{here.url}/variables", body, expect=201)
    pipeline = await here.pipeline(
        "variables: {TOP: $CI_JOB_NAME}\n"
        "start:\n"
        "  variables:\n"
        "    WHERE: $CI_PROJECT_PATH/$CI_PIPELINE_ID/$CI_PIPELINE_IID/$CI_PIPELINE_SOURCE\n"
        "    GIVEN: '$ASKED $SECRET $$ $UNKNOWN $FILE'\n"
        "    ASKED: $ASKED\n"
        "    RAW: {value: $CI_JOB_ID, expand: false}\n"
        f"  trigger: {{project: {there.path}}}\n",
        variables=[{"key": "ASKED", "value": "yes"}],
    )

    async def downstream() -> Any:
        return (await here.bridges(pipeline))["start"]["downstream_pipeline"]

    started = await until(downstream)
    found = await forge.root.get(f"{there.url}/pipelines/{started['id']}/variables")
    assert {one["key"]: one["value"] for one in found.body} == {
        "TOP": "start",
        "WHERE": f"{here.path}/{pipeline['id']}/{pipeline['iid']}/api",
        "GIVEN": "yes sec$ret-1 $$ $UNKNOWN $FILE",
        "ASKED": "yes",
        "RAW": "$CI_JOB_ID",
    }


async def test_a_bridge_may_mirror_the_status_of_its_child_pipeline_at_each_moment(forge: Forge) -> None:
    project = await ci_project(forge)
    await project.commit("inner: {script: echo, when: manual, allow_failure: false}\n", path="child.yml")
    await project.commit("inner: {script: echo, when: on_failure}\n", path="skipped.yml")
    pipeline = await project.pipeline(
        "child:\n  trigger: {include: child.yml, strategy: mirror}\n"
        "depends:\n  trigger: {include: child.yml, strategy: depend}\n"
        "skipped:\n  trigger: {include: skipped.yml, strategy: mirror}\n"
        "not mirrored:\n  trigger: {include: skipped.yml, strategy: depend}\n  allow_failure: true\n"
    )

    async def become(child: str, of_pipeline: str, **others: str) -> None:
        wanted = {
            "child": child,
            "depends": "running",
            "skipped": "skipped",
            "not mirrored": "failed",
        } | others

        async def are() -> bool:
            return await project.statuses(pipeline) == wanted

        await until(are)
        assert await project.status(pipeline) == of_pipeline

    await become("manual", "running")
    bridges = await project.bridges(pipeline)
    refused = await project.api.post(f"{project.url}/jobs/{bridges['child']['id']}/play")
    assert (refused.status, refused.body) == (400, {"message": "400 Bad request - Unplayable Job"})
    inner = (await project.jobs(bridges["child"]["downstream_pipeline"]))["inner"]
    assert (await project.api.post(f"{project.url}/jobs/{inner['id']}/play")).status == 200
    await become("running", "running")
    await run(forge, inner["id"])
    await happen(forge, inner["id"], "drop", failure_reason="script_failure")
    await become("failed", "running")
    again = (await project.api.post(f"{project.url}/jobs/{inner['id']}/retry")).body
    await become("running", "running")
    await run(forge, again["id"])
    await happen(forge, again["id"], "success")
    await become("success", "running")
    other = (await project.jobs(bridges["depends"]["downstream_pipeline"]))["inner"]
    await happen(forge, other["id"], "cancel")
    await become("success", "canceled", depends="canceled")


async def test_canceling_a_bridge_cancels_its_child_pipeline(forge):
    project = await ci_project(forge)
    await project.commit("inner:\n  script: echo\n", path="child.yml")
    pipeline = await project.pipeline("child:\n  trigger: {include: child.yml, strategy: depend}\n")

    async def downstream():
        return (await project.bridges(pipeline))["child"]["downstream_pipeline"]

    child = await until(downstream)

    async def runs() -> bool:
        return (await project.statuses(pipeline))["child"] == "running"

    await until(runs)
    await project.api.post(f"{project.url}/pipelines/{pipeline['id']}/cancel")

    async def is_canceled() -> bool:
        return await project.status(child) == "canceled"

    await until(is_canceled)
    await project.api.post(f"{project.url}/pipelines/{child['id']}/retry")
    await until(runs)


async def test_a_pipeline_of_another_project_is_started_with_the_rights_of_the_bridges_user(forge):
    here, there, hidden = await ci_project(forge), await ci_project(forge), await ci_project(forge)
    await there.commit(MANUAL_JOB, branch="main")
    await forge.member("projects", there.id, here.developer, Role.MAINTAINER)
    pipeline = await here.pipeline(
        f"good:\n  trigger: {there.path}\nhidden:\n  trigger: {hidden.path}\n"
        f"no branch:\n  trigger: {{project: {there.path}, branch: nowhere}}\n"
    )

    async def are_done() -> bool:
        return set((await here.statuses(pipeline)).values()) <= {"success", "failed"}

    await until(are_done)
    assert await here.statuses(pipeline) == {"good": "success", "hidden": "failed", "no branch": "failed"}
    bridges = await here.bridges(pipeline)
    assert bridges["good"]["downstream_pipeline"]["project_id"] == there.id
    assert bridges["good"]["downstream_pipeline"]["source"] == "pipeline"
    assert bridges["hidden"]["downstream_pipeline"] is None
    rows = await forge.database.rows(
        "SELECT failure_reason FROM jobs WHERE pipeline_id = %(id)s AND kind = 'bridge' ORDER BY name",
        id=pipeline["id"],
    )
    assert [row.failure_reason for row in rows] == [
        None, "downstream_bridge_project_not_found", "downstream_pipeline_creation_failed"
    ]  # fmt: skip


async def test_pipelines_that_start_each_other_come_to_an_end(forge):
    project = await ci_project(forge)
    await project.commit(f"again:\n  trigger: {project.path}\n", branch="main")
    await forge.root.post(f"{project.url}/pipeline", {"ref": "main"})
    found = "SELECT count(*) FROM jobs WHERE project_id = %(id)s AND failure_reason = %(reason)s"

    async def is_refused() -> bool:
        reason = "pipeline_loop_detected"
        return bool(await forge.database.value(found, id=project.id, reason=reason))

    await until(is_refused)


async def _with_child(forge: Forge) -> tuple[CiProject, dict[str, Any], int]:
    """Return a project, a pipeline of it, and the id of its manual bridge, which would wait for a child pipeline."""
    project = await ci_project(forge)
    await project.commit("inner:\n  script: echo\n", path="child.yml")
    pipeline = await project.pipeline(
        "child:\n  when: manual\n  trigger: {include: child.yml, strategy: depend}\n"
    )
    return project, pipeline, (await project.bridges(pipeline))["child"]["id"]


@attrs.frozen
class CanceledMeanwhile(PipelineMaker):
    """A maker of pipelines that cancels the bridge while its pipeline is planned."""

    forge: Forge

    async def make(self, wanted: PipelineRequest) -> int:
        await bring(self.forge, wanted.source_job_id or 0, "canceled")
        return await PipelineMaker.make(self, wanted)


async def test_a_bridge_that_is_canceled_while_its_pipeline_is_made_leaves_nothing_running(forge):
    project, pipeline, bridge_id = await _with_child(forge)
    await bring(forge, bridge_id, "pending")
    real = pipeline_maker(forge.server.app[SERVICES])
    parts = (getattr(real, field.name) for field in attrs.fields(PipelineMaker))
    await tasks.start_bridge(CanceledMeanwhile(*parts, forge=forge), bridge_id)
    child = (await project.bridges(pipeline))["child"]["downstream_pipeline"]
    assert await project.statuses(child) == {"inner": "canceled"}


async def test_a_bridge_whose_pipeline_was_removed_does_not_wait_for_ever(forge):
    project, pipeline, bridge_id = await _with_child(forge)
    await project.api.post(f"{project.url}/jobs/{bridge_id}/play")

    async def runs() -> Any:
        bridge = (await project.bridges(pipeline))["child"]
        return bridge["status"] == "running" and bridge["downstream_pipeline"]

    child = await until(runs)
    await tasks.follow_forgotten_bridges(forge.database)
    assert (await project.statuses(pipeline))["child"] == "running"
    assert (await forge.root.delete(f"{project.url}/pipelines/{child['id']}")).status == 204
    await tasks.follow_forgotten_bridges(forge.database)
    assert (await project.statuses(pipeline))["child"] == "failed"
