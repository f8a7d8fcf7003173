"""The claims of identity tokens about a job."""

import datetime
import threading
from collections.abc import Mapping
from typing import Any

import jwt
import pytest

from api_server.ci.config.execution import MAX_ID_TOKENS
from api_server.ci.identity import claims, keys
from api_server.ci.identity.queries import MAX_GROUPS
from api_server.web.routes import Role
from tests.support.ci import CiProject
from tests.support.forge import Forge
from tests.support.runner import RunningJob, a_runner

FILE = "test: {script: x, id_tokens: {TOKEN: {aud: me}}}"


async def running(project: CiProject, text: str = FILE, **options: Any) -> RunningJob:
    """Return the only job of a new pipeline, which a new runner has taken."""
    runner = await a_runner(project.forge, project_id=project.id)
    await project.pipeline(text, **options)
    return await runner.job()


def said(job: RunningJob, name: str = "TOKEN") -> dict[str, Any]:
    claims: dict[str, Any] = jwt.decode(job.variables[name], options={"verify_signature": False})
    return claims


async def test_a_token_says_who_the_job_is(forge: Forge, project: CiProject) -> None:
    groups = [await forge.group() for _ in range(2)]
    for group in groups:
        await forge.member("groups", group["id"], project.developer, Role.GUEST)
    text = "test: {script: x, timeout: 2h, environment: {name: review/x, action: prepare}, id_tokens: {A: {aud: me}}}"
    pipeline = await project.pipeline(text)
    runner = await a_runner(forge, project_id=project.id)
    job = await runner.job()
    shown = (await forge.root.get(f"{project.url}/jobs/{job.id}")).body
    found = said(job, "A")
    started = int(datetime.datetime.fromisoformat(shown["started_at"]).timestamp())
    root = forge.base.removeprefix("http://")
    jti = found.pop("jti")
    assert len(jti) == 36
    assert found == {
        "iss": forge.base,
        "sub": f"project_path:{project.path}:ref_type:branch:ref:topic",
        "aud": "me",
        "iat": started,
        "nbf": started - 5,
        "exp": started + 7200,
        **await of_project(project, ""),
        **await of_project(project, "job_"),
        "project_visibility": "private",
        "user_id": str(project.developer.id),
        "user_login": project.developer.username,
        "user_email": project.developer.email,
        "user_access_level": "developer",
        "groups_direct": sorted(group["full_path"] for group in groups),
        "pipeline_id": str(pipeline["id"]),
        "pipeline_source": "api",
        "job_id": str(job.id),
        "ref": "topic",
        "ref_type": "branch",
        "ref_path": "refs/heads/topic",
        "ref_protected": "false",
        "environment": "review/x",
        "environment_protected": "false",
        "deployment_tier": "development",
        "environment_action": "prepare",
        "runner_id": runner.id,
        "runner_environment": "self-hosted",
        "sha": pipeline["sha"],
        "ci_config_ref_uri": f"{root}/{project.path}//.gitlab-ci.yml@refs/heads/topic",
        "ci_config_sha": pipeline["sha"],
    }
    assert {*found, "jti"} == set(claims.NAMES)


async def of_project(project: CiProject, prefix: str) -> dict[str, str]:
    namespace = project.path.rpartition("/")[0]
    return {
        f"{prefix}project_id": str(project.id),
        f"{prefix}project_path": project.path,
        f"{prefix}namespace_id": str((await project.forge.root.get(f"/namespaces/{namespace}")).body["id"]),
        f"{prefix}namespace_path": namespace,
    }


async def test_it_is_a_masked_variable_and_there_are_none_of_earlier_gitlabs(project: CiProject) -> None:
    job = await running(project)
    (variable,) = [one for one in job.payload["variables"] if one["key"] == "TOKEN"]
    assert {**variable, "value": ""} == {
        "key": "TOKEN",
        "value": "",
        "public": False,
        "masked": True,
        "file": False,
        "raw": False,
    }
    assert not any(name.startswith("CI_JOB_JWT") for name in job.variables)


async def test_audiences_have_the_jobs_variables_but_not_its_secrets(project: CiProject) -> None:
    await project.forge.root.post(
        f"{project.url}/variables", {"key": "HOST", "value": "vault.example"}, expect=201
    )
    text = """
        variables: {DEPTH: 'a/$HOST'}
        test:
          script: x
          variables: {OWN: mine}
          id_tokens:
            ONE: {aud: 'https://$HOST/${OWN}'}
            LIST: {aud: [$DEPTH, '$CI_PROJECT_PATH', plain]}
            SHORT: {aud: [one]}
            EMPTY: {aud: '[$CI_JOB_TOKEN$ONE$NOTHING]'}
        """
    job = await running(project, text)
    assert {name: said(job, name)["aud"] for name in ("ONE", "LIST", "SHORT", "EMPTY")} == {
        "ONE": "https://vault.example/mine",
        "LIST": ["a/vault.example", project.path, "plain"],
        "SHORT": ["one"],
        "EMPTY": "[]",
    }
    assert len({said(job, name)["jti"] for name in ("ONE", "LIST", "SHORT", "EMPTY")}) == 4


async def test_a_variable_of_that_name_is_stronger_as_in_gitlab(project: CiProject) -> None:
    job = await running(project, f"{FILE}\nvariables: {{TOKEN: mine}}")
    assert job.variables["TOKEN"] == "mine"


async def test_a_job_on_a_protected_branch_says_so(forge: Forge, project: CiProject) -> None:
    maintainer = await forge.new_member(project.id, Role.MAINTAINER)
    found = said(await running(project, branch="main", by=maintainer.api))
    assert (found["ref"], found["ref_path"], found["ref_protected"]) == ("main", "refs/heads/main", "true")
    assert (found["user_login"], found["user_access_level"]) == (maintainer.username, "maintainer")


async def test_a_job_of_a_tag_says_so(forge: Forge, project: CiProject) -> None:
    await project.commit(FILE)
    await forge.root.post(f"{project.url}/repository/tags", {"tag_name": "v1", "ref": "topic"}, expect=201)
    runner = await a_runner(forge, project_id=project.id)
    await project.api.post(f"{project.url}/pipeline", {"ref": "v1"}, expect=201)
    found = said(await runner.job())
    assert found["sub"] == f"project_path:{project.path}:ref_type:tag:ref:v1"
    assert (found["ref"], found["ref_type"], found["ref_path"]) == ("v1", "tag", "refs/tags/v1")


async def test_a_job_of_a_merge_request_has_the_ref_of_its_source(forge: Forge, project: CiProject) -> None:
    text = "test: {script: x, only: [merge_requests], id_tokens: {TOKEN: {aud: me}}}"
    await project.commit(text, message="Set")
    wanted = {"source_branch": "topic", "target_branch": "main", "title": "Topic"}
    await project.api.post(f"{project.url}/merge_requests", wanted, expect=201)
    await project.settled()
    found = said(await (await a_runner(forge, project_id=project.id)).job())
    assert found["sub"] == f"project_path:{project.path}:ref_type:branch:ref:topic"
    assert (found["pipeline_source"], found["ref_path"]) == ("merge_request_event", "refs/heads/topic")


async def test_a_project_says_what_the_subject_is_made_of(forge: Forge, project: CiProject) -> None:
    name = "ci_id_token_sub_claim_components"
    shown = (await forge.root.get(project.url)).body
    assert shown[name] == ["project_path", "ref_type", "ref"]
    for components, subject in [
        (["project_path"], f"project_path:{project.path}"),
        (["project_path"] * 3, f"project_path:{project.path}"),
        (["project_path", "ref", "ref_type"], f"project_path:{project.path}:ref:topic:ref_type:branch"),
    ]:
        changed = await forge.root.put(project.url, {name: components}, expect=200)
        assert changed.body[name] == components
        assert said(await running(project))["sub"] == subject
    first = "project_path must be the first element of the sub claim"
    for components, message in [
        (["ref"], {"message": {"ci_cd_settings.id_token_sub_claim_components": [first]}}),
        ([""], {"message": {"ci_cd_settings.id_token_sub_claim_components": [first]}}),
        (["project_path", "sha"], {"error": f"{name} does not have a valid value"}),
    ]:
        refused = await forge.root.put(project.url, {name: components})
        assert (refused.status, refused.body) == (400, message)


async def test_tokens_are_signed_in_a_thread(project: CiProject, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job may have many of them, and each takes a millisecond."""
    threads: list[str] = []
    sign = keys.Signer.sign

    def noted(signer: keys.Signer, said: Mapping[str, Any]) -> str:
        threads.append(threading.current_thread().name)
        return sign(signer, said)

    monkeypatch.setattr(keys.Signer, "sign", noted)
    tokens = ", ".join(f"T{number}: {{aud: a}}" for number in range(MAX_ID_TOKENS))
    await running(project, f"test: {{script: x, id_tokens: {{{tokens}}}}}")
    assert len(threads) == MAX_ID_TOKENS
    assert threading.main_thread().name not in threads


async def test_without_environment_nothing_is_said_of_one(project: CiProject) -> None:
    found = said(await running(project))
    assert set(claims.NAMES) - set(found) == {
        "environment",
        "environment_protected",
        "deployment_tier",
        "environment_action",
    }


async def test_of_an_administrator_who_is_no_member_no_role_is_told(forge: Forge, project: CiProject) -> None:
    admin = await forge.user("admin", admin=True)
    found = said(await running(project, by=admin.api))
    assert (found["user_login"], found["user_access_level"]) == (admin.username, None)


async def test_of_a_user_who_is_gone_nothing_is_told(forge: Forge, project: CiProject) -> None:
    await project.pipeline(FILE)
    await forge.execute("UPDATE jobs SET user_id = NULL WHERE project_id = %(id)s", id=project.id)
    found = said(await (await a_runner(forge, project_id=project.id)).job())
    of_user = {name: found.get(name) for name in found if name.startswith("user_")}
    assert of_user == {"user_id": "", "user_login": None, "user_email": None, "user_access_level": None}
    assert "groups_direct" not in found


MANY_GROUPS = """
    WITH made AS (
        INSERT INTO namespaces (kind, name, path, full_path, full_name, visibility)
        SELECT 'group', path, path, path, path, 'private'
        FROM (SELECT 'many-' || %(user_id)s || '-' || number AS path FROM generate_series(1, %(count)s) number) paths
        RETURNING id
    )
    INSERT INTO members (user_id, namespace_id, access_level) SELECT %(user_id)s, id, 10 FROM made
"""


async def test_groups_of_a_member_of_many_are_left_out(forge: Forge, project: CiProject) -> None:
    await forge.execute(MANY_GROUPS, user_id=project.developer.id, count=MAX_GROUPS)
    assert len(said(await running(project))["groups_direct"]) == MAX_GROUPS
    await forge.member("groups", (await forge.group())["id"], project.developer, Role.GUEST)
    assert "groups_direct" not in said(await running(project))


async def test_an_audience_has_its_bounds(project: CiProject) -> None:
    variable = {"key": "LONG", "value": "a" * (claims.MAX_AUDIENCE - 1)}
    await project.forge.root.post(f"{project.url}/variables", variable, expect=201)
    job = await running(project, "test: {script: x, id_tokens: {TOKEN: {aud: '${LONG}b'}}}")
    assert said(job)["aud"] == variable["value"] + "b"
    pipeline = await project.pipeline("test: {script: x, id_tokens: {TOKEN: {aud: '${LONG}bc'}}}")
    runner = await a_runner(project.forge, project_id=project.id)
    assert (await runner.poll()).status == 204
    failed = (await project.jobs(pipeline))["test"]
    assert (failed["status"], failed["failure_reason"]) == ("failed", "data_integrity_failure")
