"""Trying configurations out."""

from api_server.ci.pipelines import planning
from api_server.web.routes import Role
from tests.support.ci import ONE_JOB, ci_project
from tests.support.forge import Forge


async def test_lint_says_what_is_wrong_and_what_a_text_would_give(forge):
    project = await ci_project(forge)
    await project.commit("inner:\n  script: echo\n", path="more.yml", branch="main")
    bad = await project.api.post(f"{project.url}/ci/lint", {"content": "build: {skript: a}"})
    assert (bad.status, bad.body["valid"]) == (200, False)
    assert bad.body["errors"] == ["jobs build config should implement a script: or a trigger: keyword"]
    good = await project.api.post(
        f"{project.url}/ci/lint",
        {"content": "include: more.yml\nbuild: {script: make}", "include_jobs": True},
    )
    assert (good.body["valid"], good.body["errors"], good.body["warnings"]) == (True, [], [])
    (included,) = good.body["includes"]
    sha = included["context_sha"]
    at = f"{forge.settings.base_url}/{project.path}/-"
    assert included == {
        "type": "local",
        "location": "more.yml",
        "blob": f"{at}/blob/{sha}/more.yml",
        "raw": f"{at}/raw/{sha}/more.yml",
        "extra": {},
        "context_project": project.path,
        "context_sha": sha,
    }
    twice = {"content": "build: {script: a, script: make}", "include_jobs": True}
    warned = (await project.api.post(f"{project.url}/ci/lint", twice)).body
    assert (warned["valid"], warned["jobs"][0]["script"]) == (True, ["make"])
    assert warned["warnings"] == ["The key script is given twice, again at line 1: the last one counts"]
    assert "script: make" in good.body["merged_yaml"]
    assert {job["name"]: job["script"] for job in good.body["jobs"]} == {"inner": ["echo"], "build": ["make"]}
    filtered = {"content": "build: {script: make, rules: [{if: $NEVER}]}"}
    assert (await project.api.post(f"{project.url}/ci/lint", filtered)).body["valid"] is True
    dry = await project.api.post(f"{project.url}/ci/lint", filtered | {"dry_run": True})
    assert (dry.body["valid"], dry.body["errors"]) == (False, ["No stages / jobs for this pipeline."])


async def test_expressions_of_a_file_take_a_bounded_time(forge, monkeypatch):
    project = await ci_project(forge)

    async def errors(expressions):
        content = "a: {script: b, only: [" + ", ".join(f"'{text}'" for text in expressions) + "]}"
        answer = await project.api.post(f"{project.url}/ci/lint", {"content": content}, expect=200)
        return answer.body["errors"]

    ref = "jobs:a:only config should be an array of strings or regular expressions using re2 syntax"
    assert await errors([f"/^v{number}/" for number in range(900)]) == []
    assert await errors([rf"/\pL{{400}}{number}/" for number in range(10)]) == [ref]
    assert await errors([f"/^w{number}/" for number in range(1001)]) == [
        "There are more than 1000 different regular expressions and path patterns"
    ]
    monkeypatch.setattr(planning, "EXPRESSION_SECONDS", 0.001)
    assert await errors([rf"/\pL{{2}}{number}/" for number in range(100)]) == [
        "Regular expressions and path patterns take too long; try simpler ones, or later"
    ]


async def test_a_text_without_a_commit_uses_its_own_projects_allowance(forge, monkeypatch):
    monkeypatch.setattr(planning, "EXPRESSION_SECONDS_A_MINUTE", 0.001)
    user = await forge.user("alice", admin=True)

    async def errors(project, expressions):
        content = "a: {script: b, only: [" + ", ".join(f"'{text}'" for text in expressions) + "]}"
        return (await user.api.post(f"/projects/{project['id']}/ci/lint", {"content": content})).body[
            "errors"
        ]

    first, other = await forge.project(), await forge.project()
    assert await errors(first, [rf"/\pL{{3}}{number}/" for number in range(100)]) != []
    assert await errors(first, ["/^never seen/"]) != []
    assert await errors(other, ["/^not seen/"]) == []


async def test_lint_of_the_projects_own_file(forge):
    project = await ci_project(forge)
    nothing = await project.api.get(f"{project.url}/ci/lint")
    assert (nothing.body["valid"], nothing.body["errors"]) == (False, ["Missing CI config file"])
    await project.commit(ONE_JOB, branch="topic")
    assert (await project.api.get(f"{project.url}/ci/lint?content_ref=topic")).body["valid"] is True


async def test_each_user_tries_files_out_so_often_in_a_minute(forge: Forge):
    with forge.changed_settings(lint_rate_limit=2):
        project = await forge.project()
        url = f"/projects/{project['id']}/ci/lint"
        developer = await forge.new_member(project["id"], Role.DEVELOPER)
        answers = [
            await developer.api.post(url, {"content": "a: {script: b}"}),
            await developer.api.get(url),
            await developer.api.post(url, {"content": "a: {script: b}"}),
            await developer.api.get(url),
        ]
        assert [answer.status for answer in answers] == [200, 200, 429, 429]
        text = "This endpoint has been requested too many times. Try again later."
        assert answers[2].body == {"message": {"error": text}}
        assert 0 < int(answers[2].headers["Retry-After"]) <= 60
        other = await forge.user("other", admin=True)
        assert (await other.api.post(url, {"content": "a: {script: b}"})).status == 200
