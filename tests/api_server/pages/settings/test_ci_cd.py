"""CI/CD settings of projects and groups: variables, runners, trigger tokens, and projects whose jobs have access."""

import datetime
import re

import pytest

from api_server.web.routes import Role
from tests.api_server.pages.settings.conftest import Scene
from tests.support.browser import Browser, browsing

VALUE = "value-of-the-tests"


def page_of(scene: Scene) -> str:
    return f"{scene.of_project}/-/settings/ci_cd"


def shown_token(browser: Browser) -> str:
    found = re.search(r'<code class="token">(\S+)</code>', browser.text)
    assert found, browser.text
    return found[1]


async def test_only_maintainers_open_it_and_owners_that_of_a_group(scene: Scene) -> None:
    async with scene.browsing("developer") as browser:
        assert (await browser.get(page_of(scene))).status == 403
        await browser.send(f"{page_of(scene)}/variables", key="KEY", secret_value=VALUE)
        assert browser.status == 403
    async with browsing(scene.forge) as stranger:
        assert (await stranger.get(page_of(scene))).path == "/-/sign_in"
    maintainer = await scene.forge.new_member(scene.group["id"], Role.MAINTAINER, source="groups")
    async with browsing(scene.forge, maintainer) as browser:
        assert (await browser.get(page_of(scene))).status == 200
        assert (await browser.get(f"{scene.of_group}/-/settings/ci_cd")).status == 403


async def test_how_pipelines_run_is_saved(scene: Scene, maintainer: Browser) -> None:
    await maintainer.get(page_of(scene))
    fields = {
        "ci_config_path": "ci/main.yml",
        "build_git_strategy": "clone",
        "ci_default_git_depth": "5",
        "build_timeout": "1200",
        "ci_pipeline_variables_minimum_override_role": "maintainer",
        "public_jobs": "false",
        "auto_cancel_pending_pipelines": "disabled",
    }
    await maintainer.send(f"{page_of(scene)}/update", **fields)
    assert (maintainer.status, maintainer.path) == (200, page_of(scene))
    saved = await scene.read()
    numbers = {"ci_default_git_depth": 5, "build_timeout": 1200, "public_jobs": False}
    assert (fields | numbers).items() <= saved.items()
    await maintainer.send(f"{page_of(scene)}/update", **fields | {"build_timeout": "1"})
    assert (maintainer.status, 'id="general-build_timeout-problem"' in maintainer.text) == (400, True)


async def test_values_of_variables_are_shown_to_who_asks_only(scene: Scene, maintainer: Browser) -> None:
    await maintainer.get(page_of(scene))
    fields = {"key": "KEY", "environment_scope": "review/*", "variable_type": "env_var"}
    await maintainer.send(
        f"{page_of(scene)}/variables",
        **fields,
        secret_value=VALUE,
        visibility="masked",
        protected="true",
        expanded="true",
    )
    assert (maintainer.status, maintainer.path, VALUE in maintainer.text) == (200, page_of(scene), False)
    (made,) = await scene.read("/variables")
    flags = {"value": VALUE, "masked": True, "hidden": False, "protected": True, "raw": False}
    assert (fields | flags).items() <= made.items()
    await maintainer.get(f"{page_of(scene)}?reveal=true")
    assert VALUE in maintainer.text
    one = f"{page_of(scene)}/variables/KEY/review/*"
    await maintainer.send(
        f"{one}/update", secret_value="", environment_scope="review/*", masked="false", value_shown=""
    )
    (changed,) = await scene.read("/variables")
    assert (changed["value"], changed["masked"], changed["protected"]) == (VALUE, False, False)
    await maintainer.send(f"{one}/update", secret_value="another", environment_scope="*")
    (changed,) = await scene.read("/variables")
    assert (changed["value"], changed["environment_scope"]) == ("another", "*")
    await maintainer.send(f"{page_of(scene)}/variables/KEY/*/delete")
    assert await scene.read("/variables") == []


async def test_a_hidden_variable_is_read_by_nobody(scene: Scene, maintainer: Browser) -> None:
    await maintainer.get(page_of(scene))
    await maintainer.send(
        f"{page_of(scene)}/variables", key="HIDDEN", secret_value=VALUE, visibility="hidden"
    )
    await maintainer.get(f"{page_of(scene)}?reveal=true")
    assert (VALUE in maintainer.text, ">hidden</span>" in maintainer.text) == (False, True)


async def test_a_refused_variable_comes_back_without_its_value(scene: Scene, maintainer: Browser) -> None:
    await maintainer.get(page_of(scene))
    for fields, problem in (
        ({"key": "no key", "secret_value": VALUE}, "key"),
        ({"key": "", "secret_value": VALUE}, "key"),
        ({"key": "KEY", "secret_value": "2short2", "visibility": "masked"}, "secret_value"),
        ({"key": "KEY", "secret_value": VALUE, "environment_scope": "a?b"}, "environment_scope"),
    ):
        await maintainer.send(f"{page_of(scene)}/variables", **fields)
        assert (maintainer.status, f'id="new-variable-{problem}-problem"' in maintainer.text) == (400, True)
        assert (f'value="{fields["key"]}"' in maintainer.text, fields["secret_value"] in maintainer.text) == (
            True,
            False,
        )
        assert "Enter it again: it is not shown." in maintainer.text
    assert await scene.read("/variables") == []


async def test_a_runner_is_made_and_its_token_shown_once(scene: Scene, maintainer: Browser) -> None:
    await maintainer.get(page_of(scene))
    fields = {"description": "of the page", "tag_list": "linux, docker", "run_untagged": "false"}
    await maintainer.send(
        f"{page_of(scene)}/runners", **fields, access_level="ref_protected", maximum_timeout=""
    )
    token = shown_token(maintainer)
    assert f"gitlab-runner register --url {scene.forge.base} --token {token}" in maintainer.text
    verified = await scene.forge.anonymous.post("/runners/verify", {"token": token})
    assert verified.status == 200
    runner = (await scene.owner.api.get(f"/runners/{verified.body['id']}")).body
    assert (runner["tag_list"], runner["run_untagged"], runner["access_level"]) == (
        ["docker", "linux"],
        False,
        "ref_protected",
    )
    one = f"{page_of(scene)}/runners/{runner['id']}"
    await maintainer.get(page_of(scene))
    assert (token in maintainer.text, "of the page" in maintainer.text) == (False, True)
    await maintainer.send(f"{one}/pause")
    assert (await scene.owner.api.get(f"/runners/{runner['id']}")).body["paused"]
    await maintainer.send(f"{one}/resume")
    await maintainer.send(f"{one}/update", description="renamed", tag_list="", run_untagged="true")
    changed = (await scene.owner.api.get(f"/runners/{runner['id']}")).body
    assert (changed["paused"], changed["description"], changed["tag_list"]) == (False, "renamed", [])
    await maintainer.send(f"{one}/update", tag_list="", run_untagged="false")
    assert (maintainer.status, "tags" in maintainer.text.lower()) == (400, True)
    await maintainer.send(f"{one}/remove")
    assert (await scene.owner.api.get(f"/runners/{runner['id']}")).status == 404


async def test_runners_of_others_are_shown_and_not_touched(scene: Scene, maintainer: Browser) -> None:
    runner = {"runner_type": "group_type", "group_id": scene.group["id"], "description": "of the group"}
    made = (await scene.owner.api.post("/user/runners", runner)).body
    await maintainer.get(page_of(scene))
    assert ("of the group" in maintainer.text, f"/runners/{made['id']}/pause" in maintainer.text) == (
        True,
        False,
    )
    await maintainer.send(f"{page_of(scene)}/runners/{made['id']}/pause")
    assert "Nothing was done" in maintainer.text
    async with browsing(scene.forge, scene.owner) as owner:
        await owner.get(f"{scene.of_group}/-/settings/ci_cd")
        await owner.send(f"{scene.of_group}/-/settings/ci_cd/runners/{made['id']}/pause")
        assert (owner.status, "Runner paused." in owner.text) == (200, True)


async def test_a_trigger_token_is_shown_once_and_revoked(scene: Scene, maintainer: Browser) -> None:
    await maintainer.get(page_of(scene))
    await maintainer.send(f"{page_of(scene)}/triggers", description="Nightly")
    token = shown_token(maintainer)
    (trigger,) = (await scene.people["maintainer"].api.get(f"{scene.api}/triggers")).body
    assert trigger["token"] == token
    await maintainer.get(page_of(scene))
    assert (token in maintainer.text, "Nightly" in maintainer.text) == (False, True)
    await maintainer.send(f"{page_of(scene)}/triggers/{trigger['id']}/delete")
    assert "Trigger token revoked." in maintainer.text
    assert await scene.read("/triggers") == []


async def test_a_form_sent_twice_makes_one_runner_and_shows_its_token_for_a_minute(
    scene: Scene, maintainer: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    await maintainer.get(page_of(scene))
    form = re.search(rf'<form[^>]* action="{page_of(scene)}/runners".*?</form>', maintainer.text, re.DOTALL)
    assert form
    keys = dict(re.findall(r'<input type="hidden" name="(csrf_token|form_key)" value="([^"]*)"', form[0]))
    for _ in range(2):
        url, sent = f"{maintainer.base}{page_of(scene)}/runners", keys | {"description": "twice"}
        async with maintainer.session.post(url, data=sent, allow_redirects=False) as answer:
            assert answer.status == 303
            location = answer.headers["Location"]
    runners = await scene.read("/runners?type=project_type")
    assert [each["description"] for each in runners] == ["twice"]
    await maintainer.get(location)
    token = shown_token(maintainer)
    assert token not in location
    async with scene.browsing("owner") as other:
        assert token not in (await other.get(location)).text
    await maintainer.get(f"{page_of(scene)}?made=nonsense")
    assert (maintainer.status, "not be shown again" in maintainer.text) == (200, False)
    monkeypatch.setattr("api_server.pages.shown_once._LIFETIME", datetime.timedelta(seconds=-1))
    await maintainer.send(f"{page_of(scene)}/runners", description="too late", run_untagged="true")
    assert (maintainer.status, "not be shown again" in maintainer.text) == (200, False)


async def test_jobs_of_other_projects_and_groups_are_let_in(scene: Scene, maintainer: Browser) -> None:
    other = await scene.forge.project(scene.people["maintainer"])
    group = await scene.forge.group(visibility="public")
    secret = await scene.forge.project(scene.owner)
    page, allow = page_of(scene), f"{page_of(scene)}/job_token_scope/allow"
    await maintainer.get(page)
    await maintainer.send(allow, path=f" /{other['path_with_namespace']}/ ")
    assert f"{other['path_with_namespace']} added to the allowlist." in maintainer.text
    await maintainer.send(allow, path=group["full_path"])
    for path in (secret["path_with_namespace"], "nobody/nothing", ""):
        await maintainer.send(allow, path=path)
        assert (maintainer.status, "No project or group with this path." in maintainer.text) == (
            422,
            True,
        )
    scope = f"{scene.api}/job_token_scope"
    projects = (await scene.owner.api.get(f"{scope}/allowlist")).body
    assert {each["id"] for each in projects} == {scene.project["id"], other["id"]}
    assert [each["id"] for each in (await scene.owner.api.get(f"{scope}/groups_allowlist")).body] == [
        group["id"]
    ]
    await maintainer.send(f"{page}/job_token_scope/projects/{other['id']}/remove")
    await maintainer.send(f"{page}/job_token_scope/groups/{group['id']}/remove")
    assert len((await scene.owner.api.get(f"{scope}/allowlist")).body) == 1
    assert (await scene.owner.api.get(f"{scope}/groups_allowlist")).body == []
    await maintainer.send(f"{page}/job_token_scope", enabled="false")
    assert not (await scene.owner.api.get(scope)).body["inbound_enabled"]


async def test_a_group_has_variables_and_runners(scene: Scene, owner: Browser) -> None:
    page, api = f"{scene.of_group}/-/settings/ci_cd", f"/groups/{scene.group['id']}"
    await owner.get(page)
    assert ("Pipeline trigger tokens" in owner.text, "Job token permissions" in owner.text) == (False, False)
    await owner.send(f"{page}/variables", key="OF_GROUP", secret_value=VALUE)
    assert (owner.status, owner.path) == (200, page)
    assert [each["key"] for each in await scene.read("/variables", api)] == ["OF_GROUP"]
    await owner.send(f"{page}/variables/OF_GROUP/*/delete")
    assert await scene.read("/variables", api) == []
    await owner.send(f"{page}/runners", description="of the group", run_untagged="true")
    verified = await scene.forge.anonymous.post("/runners/verify", {"token": shown_token(owner)})
    runner = (await scene.owner.api.get(f"/runners/{verified.body['id']}")).body
    assert [each["id"] for each in runner["groups"]] == [scene.group["id"]]


@pytest.mark.parametrize(
    "path", ["variables", "runners", "triggers", "job_token_scope", "job_token_scope/allow"]
)
async def test_forms_that_are_not_ours_do_nothing(scene: Scene, maintainer: Browser, path: str) -> None:
    await maintainer.get(page_of(scene))
    fields = {"key": "KEY", "secret_value": VALUE, "description": "x", "enabled": "false"}
    await maintainer.send(f"{page_of(scene)}/{path}", csrf_token="another", **fields)
    assert (maintainer.status, await scene.read("/variables")) == (403, [])
    assert (await scene.read("/job_token_scope"))["inbound_enabled"]
