"""Namespaces: paths and names, and the keys and types of bodies that GitLab's clients expect."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gitlab
import pytest

from api_server.ci.agents.agents import path_of
from api_server.git import references
from api_server.git.repositories import REPOSITORIES
from api_server.namespaces import projects
from api_server.web.context import SERVICES
from api_server.web.routes import Role
from tests.support.background import watched
from tests.support.ci import ci_project, run
from tests.support.forge import Forge, Person, new_name
from tests.support.git_client import Git, git_url
from tests.support.merge_requests import commit
from tests.support.waiting import until


async def test_whether_a_path_is_taken_and_what_is_free_beside_it(forge: Forge) -> None:
    alice = await forge.user("alice")
    group = await forge.group(visibility="private")
    taken = await alice.api.get(f"/namespaces/{group['path'].upper()}/exists")
    assert (taken.status, taken.body["exists"]) == (200, True)
    free = taken.body["suggests"]
    assert (await alice.api.get(f"/namespaces/{free[0]}/exists")).body == {"exists": False, "suggests": []}
    assert (await alice.api.get(f"/namespaces/{alice.username}/exists")).body["exists"] is True


async def test_what_is_below_a_hidden_group_is_not_told(forge: Forge) -> None:
    alice = await forge.user("alice")
    group = await forge.group(visibility="private")
    subgroup = await forge.group(parent_id=group["id"], visibility="private")
    path = f"/namespaces/{subgroup['path']}/exists?parent_id={group['id']}"
    assert (await alice.api.get(path)).body["exists"] is False
    assert (await forge.root.get(path)).body["exists"] is True


async def test_a_caller_has_her_own_namespace_and_those_of_her_groups(forge: Forge) -> None:
    alice = await forge.user("alice")
    group = await forge.group(alice, visibility="private")
    listed = await alice.api.get("/namespaces")
    assert [namespace["full_path"] for namespace in listed.body] == [alice.username, group["full_path"]]
    assert (await alice.api.get(f"/namespaces/{group['id']}")).body == listed.body[1]
    assert (await alice.api.get(f"/namespaces/{alice.username}")).body == listed.body[0]
    bob = await forge.user("bob")
    hidden = await bob.api.get(f"/namespaces/{group['id']}")
    assert (hidden.status, hidden.body) == (404, {"message": "404 Namespace Not Found"})


async def test_descendant_groups_are_all_below_that_the_caller_sees(forge: Forge) -> None:
    alice, bob = await forge.user("alice"), await forge.user("bob")
    top = await forge.group(alice)
    middle = await forge.group(parent_id=top["id"])
    lowest = await forge.group(parent_id=middle["id"], visibility="private")
    await forge.group()

    async def ids(person: Person, group: dict[str, object], query: str = "") -> list[int]:
        answer = await person.api.get(f"/groups/{group['id']}/descendant_groups{query}")
        assert answer.status == 200, answer
        return sorted(one["id"] for one in answer.body)

    assert await ids(alice, top) == [middle["id"], lowest["id"]]
    assert await ids(bob, top) == [middle["id"]]
    assert await ids(alice, middle) == [lowest["id"]]
    assert await ids(alice, lowest) == []
    assert await ids(alice, top, f"?search={lowest['path']}") == [lowest["id"]]
    assert await ids(alice, top, "?owned=true") == [middle["id"], lowest["id"]]
    assert await ids(alice, top, f"?skip_groups[]={lowest['id']}&skip_groups[]={top['id']}") == [middle["id"]]
    hers = (await alice.api.get(f"/groups?owned=true&skip_groups={top['id']},{middle['id']}")).body
    assert [group["id"] for group in hers] == [lowest["id"]]


async def test_the_smallest_number_is_no_groups(forge: Forge) -> None:
    smallest = -(2**63)
    free = await forge.root.get(f"/namespaces/free/exists?parent_id={smallest}")
    assert (free.status, free.body) == (200, {"exists": False, "suggests": []})
    assert (await forge.root.get(f"/groups/{smallest}")).status == 404


Json = dict[str, Any]
BLANK = (400, {"message": {"name": ["can't be blank"]}})


@pytest.fixture(scope="module")
async def things(forge: Forge) -> dict[str, str]:
    """Return an entity of each kind by its path below the API."""
    user, group, project = await forge.user(), await forge.group(), await forge.project()
    return {
        "users": f"/users/{user.id}",
        "groups": f"/groups/{group['id']}",
        "projects": f"/projects/{project['id']}",
    }


@pytest.mark.parametrize("kind", ["users", "groups", "projects"])
async def test_a_name_is_not_made_blank(forge: Forge, things: dict[str, str], kind: str) -> None:
    before = (await forge.root.get(things[kind])).body["name"]
    for blank in ("", " ", "\t\n", "\u2003"):
        answer = await forge.root.put(things[kind], {"name": blank})
        assert (answer.status, answer.body) == BLANK
    assert (await forge.root.get(things[kind])).body["name"] == before
    assert (await forge.root.put(things[kind], {"name": None})).status == 200
    assert (await forge.root.put(things[kind], {"name": " x"})).status == 200


async def test_a_project_is_not_made_with_a_blank_name(forge: Forge) -> None:
    answer = await forge.root.post("/projects", {"name": " ", "path": new_name("project")})
    assert (answer.status, answer.body) == BLANK


async def last_event(forge: Forge, path: str, event_type: str) -> Json:
    (event,) = (await forge.root.get(f"{path}/audit_events?event_type={event_type}&per_page=1")).body
    return dict(event["details"])


@pytest.mark.parametrize(("kind", "path_key"), [("groups", "full_path"), ("projects", "path_with_namespace")])
async def test_an_event_of_a_new_path_stands_under_that_path(
    forge: Forge, things: dict[str, str], kind: str, path_key: str
) -> None:
    old = (await forge.root.get(things[kind])).body[path_key]
    changed = await forge.root.put(things[kind], {"path": new_name("renamed"), "name": new_name("name")})
    new = changed.body[path_key]
    assert (changed.status, new != old) == (200, True)
    for event_type in ("path_updated", "name_updated"):
        told = await last_event(forge, things[kind], f"{kind.removesuffix('s')}_{event_type}")
        assert told["entity_path"] == new
    told = await last_event(forge, things[kind], f"{kind.removesuffix('s')}_path_updated")
    assert (told["from"], told["to"]) == (old, new)


async def test_an_event_of_a_new_user_name_stands_under_that_name(
    forge: Forge, things: dict[str, str]
) -> None:
    name = new_name("renamed")
    assert (await forge.root.put(things["users"], {"username": name})).status == 200
    user_id = things["users"].rpartition("/")[2]
    query = f"entity_type=User&entity_id={user_id}&event_type=user_updated&per_page=1"
    (event,) = (await forge.root.get(f"/audit_events?{query}")).body
    assert event["details"]["entity_path"] == name


TEXT, FLAG, NUMBER, LIST, OBJECT, NOTHING = "text", "flag", "number", "list", "object", "nothing"
_TYPES = {str: TEXT, bool: FLAG, int: NUMBER, list: LIST, dict: OBJECT, type(None): NOTHING}

USER = {
    TEXT: "username name state web_url",
    FLAG: "locked",
    NUMBER: "id",
    NOTHING: "public_email avatar_url",
}
MEMBER = USER | {
    TEXT: USER[TEXT] + " created_at membership_state",
    NUMBER: "id access_level",
    OBJECT: "created_by",
    NOTHING: "public_email avatar_url expires_at",
}
GROUP = {
    TEXT: "web_url name path description visibility project_creation_level subgroup_creation_level full_name full_path"
    " created_at shared_runners_setting wiki_access_level",
    FLAG: "share_with_group_lock require_two_factor_authentication emails_disabled emails_enabled lfs_enabled"
    " math_rendering_limits_enabled lock_math_rendering_limits_enabled request_access_enabled",
    NUMBER: "id two_factor_grace_period default_branch_protection organization_id",
    OBJECT: "default_branch_protection_defaults",
    NOTHING: "auto_devops_enabled mentions_disabled default_branch avatar_url parent_id ldap_cn ldap_access"
    " marked_for_deletion_on",
}
GROUP_IN_DETAIL = GROUP | {
    FLAG: GROUP[FLAG] + " prevent_sharing_groups_outside_hierarchy membership_lock",
    LIST: "shared_with_groups",
    NOTHING: GROUP[NOTHING]
    + " runners_token shared_runners_minutes_limit extra_shared_runners_minutes_limit prevent_forking_outside_group",
}
PROJECT = {
    TEXT: "name name_with_namespace path path_with_namespace created_at ssh_url_to_repo http_url_to_repo web_url"
    " last_activity_at visibility updated_at repository_object_format description_html import_status ci_config_path"
    " repository_access_level builds_access_level issues_access_level merge_requests_access_level"
    " forking_access_level wiki_access_level snippets_access_level pages_access_level analytics_access_level"
    " container_registry_access_level security_and_compliance_access_level releases_access_level"
    " environments_access_level feature_flags_access_level infrastructure_access_level monitor_access_level"
    " model_experiments_access_level model_registry_access_level package_registry_access_level"
    " requirements_access_level build_git_strategy auto_cancel_pending_pipelines auto_devops_deploy_strategy"
    " ci_restrict_pipeline_cancellation_role",
    FLAG: "packages_enabled empty_repo archived resolve_outdated_diff_discussions issues_enabled"
    " merge_requests_enabled wiki_enabled jobs_enabled snippets_enabled container_registry_enabled"
    " service_desk_enabled can_create_merge_request_in emails_disabled emails_enabled shared_runners_enabled"
    " lfs_enabled ci_forward_deployment_enabled ci_forward_deployment_rollback_allowed ci_job_token_scope_enabled"
    " ci_inbound_job_token_scope_enabled ci_separated_caches ci_allow_fork_pipelines_to_run_in_parent_project"
    " keep_latest_artifact group_runners_enabled auto_devops_enabled ci_push_repository_for_job_token_allowed"
    " public_jobs only_allow_merge_if_pipeline_succeeds allow_merge_on_skipped_pipeline request_access_enabled"
    " remove_source_branch_after_merge printing_merge_request_link_enabled enforce_auth_checks_on_uploads"
    " warn_about_potentially_unwanted_characters autoclose_referenced_issues mirror requirements_enabled"
    " security_and_compliance_enabled merge_pipelines_enabled merge_trains_enabled merge_trains_skip_train_allowed"
    " only_allow_merge_if_all_status_checks_passed allow_pipeline_trigger_approve_deployment"
    " prevent_merge_without_jira_issue",
    NUMBER: "id forks_count star_count creator_id open_issues_count ci_default_git_depth build_timeout"
    " approvals_before_merge",
    LIST: "tag_list topics shared_with_groups compliance_frameworks ci_id_token_sub_claim_components",
    OBJECT: "namespace _links permissions owner",
    NOTHING: "description default_branch readme_url avatar_url marked_for_deletion_at marked_for_deletion_on"
    " service_desk_address import_url import_type import_error ci_delete_pipelines_in_seconds runners_token"
    " runner_token_expiration_interval suggestion_commit_message merge_commit_template squash_commit_template"
    " issue_branch_template external_authorization_classification_label issues_template merge_requests_template",
}


def typed(table: dict[str, str]) -> dict[str, str]:
    return {key: kind for kind, keys in table.items() for key in keys.split()}


def types_of(body: dict[str, Any]) -> dict[str, str]:
    return {key: _TYPES[type(value)] for key, value in body.items()}


async def test_members(forge: Forge) -> None:
    alice = await forge.user("alice")
    project = await forge.project(members={Role.DEVELOPER: alice})
    shown = (await alice.api.get(f"/projects/{project['id']}/members/{alice.id}")).body
    assert types_of(shown) == typed(MEMBER)
    assert types_of(shown["created_by"]) == typed(USER)


async def test_groups(forge: Forge) -> None:
    group = await forge.group()
    (listed,) = (await forge.root.get(f"/groups?search={group['path']}")).body
    assert types_of(listed) == typed(GROUP)
    shown = (await forge.root.get(f"/groups/{group['id']}")).body
    assert types_of(shown) == typed(GROUP_IN_DETAIL)
    assert shown == group
    assert listed == {key: shown[key] for key in listed}


async def test_strangers_see_the_public_groups(forge: Forge) -> None:
    alice, word = await forge.user("alice"), f"g{forge.settings.port}"
    made = {
        visibility: await forge.group(alice, name=f"{word} {visibility}", visibility=visibility)
        for visibility in ("public", "internal", "private")
    }
    for query, expected in (
        ("", 1),
        ("&min_access_level=50", 1),
        ("&top_level_only=true", 1),
        ("&owned=true", 0),
    ):
        answer = await forge.anonymous.get(f"/groups?search={word}{query}")
        assert (answer.status, [each["id"] for each in answer.body]) == (
            200,
            [made["public"]["id"]] * expected,
        )
    (known,) = (await alice.api.get(f"/groups?search={word}%20public")).body
    assert (await forge.anonymous.get(f"/groups?search={word}")).body == [known]


async def test_projects(forge: Forge) -> None:
    alice = await forge.user("alice")
    project = await forge.project(alice)
    shown = (await alice.api.get(f"/projects/{project['id']}")).body
    (listed,) = (await alice.api.get("/projects?owned=true")).body
    assert shown == listed == project
    expected = typed(PROJECT)
    assert {key: kind for key, kind in types_of(shown).items() if key in expected} == expected
    host = forge.base.split("//")[1].split(":")[0]
    assert shown["ssh_url_to_repo"] == f"git@{host}:{alice.username}/{project['path']}.git"
    assert (shown["owner"]["id"], shown["_links"]["self"]) == (
        alice.id,
        f"{forge.base}/api/v4/projects/{project['id']}",
    )


async def test_projects_of_groups_have_no_owner(forge: Forge) -> None:
    group = await forge.group()
    made = await forge.project(namespace_id=group["id"], description='a < b & "c"')
    assert "owner" not in made
    assert made["description_html"] == '<p dir="auto">a &lt; b &amp; &quot;c&quot;</p>'


async def test_nothing_is_shared_with_groups(forge: Forge) -> None:
    """Clients that manage sharing list it first; sharing itself does not exist here."""
    group = await forge.group()
    project = await forge.project(namespace_id=group["id"])

    def use() -> None:
        with gitlab.Gitlab(forge.base, private_token=forge.root.token) as client:
            found = client.groups.get(group["id"])
            assert found.shared_projects.list(get_all=True) == found.shared_with_groups == []
            assert client.projects.get(project["id"]).shared_with_groups == []
            with pytest.raises(gitlab.GitlabCreateError) as refused:
                client.projects.get(project["id"]).share(group["id"], 30)
            assert refused.value.response_code == 404

    await asyncio.to_thread(use)
    page = await forge.root.get(f"/groups/{group['id']}/projects/shared")
    assert (page.body, page.headers["X-Total"]) == ([], "0")


async def test_a_project_has_no_issues(forge: Forge) -> None:
    """It looks like a project whose issues are disabled: programs that search for its issues find none and continue."""
    project = await forge.project(visibility="private")
    stranger = await forge.user()
    path = f"/projects/{project['id']}/issues"
    assert project["issues_enabled"] is False

    page = await forge.root.get(path, params={"state": "opened", "scope": "created_by_me", "per_page": 100})
    assert (page.status, page.body) == (200, [])
    assert (page.headers["X-Total"], page.headers["X-Per-Page"]) == ("0", "100")
    assert (await forge.root.get(path, params={"page": 0})).status == 400
    assert (await forge.anonymous.get(path)).status == 401
    assert (await stranger.api.get(path)).body == {"message": "404 Project Not Found"}


async def test_a_path_is_one_segment_so_that_nobody_enters_another_namespace(forge: Forge) -> None:
    person, other = await forge.user(), await forge.group()
    group, project = await forge.group(person), await forge.project(person)
    path = f"{other['full_path']}/mine"
    for method, url, field in (
        ("POST", "/groups", {"name": "x"}),
        ("PUT", f"/groups/{group['id']}", {}),
        ("POST", "/projects", {"name": "x"}),
        ("PUT", f"/projects/{project['id']}", {}),
    ):
        answer = await person.api.request(method, url, json=field | {"path": path})
        assert (answer.status, "can contain only letters" in str(answer.body)) == (400, True), (url, answer)
    assert (await forge.root.get(f"/groups/{path.replace('/', '%2F')}")).status == 404


async def _two_branches(forge: Forge, **values: Any) -> tuple[Person, Json]:
    """Create `main` and `next`, in which the file `which` names the branch."""
    alice = await forge.user("alice")
    project = await forge.project(alice, **values)
    await commit(alice.api, project, "main", "which", content="main")
    await commit(alice.api, project, "next", "other", content="", start_branch="main")
    changed = await alice.api.put(
        f"/projects/{project['id']}/repository/files/which",
        {"branch": "next", "content": "next", "commit_message": "Say which"},
    )
    assert changed.status == 200, changed
    return alice, project


async def _change(alice: Person, project: Json, name: str = "next") -> None:
    answer = await alice.api.put(f"/projects/{project['id']}", {"default_branch": name})
    assert (answer.status, answer.body["default_branch"]) == (200, name)


async def test_everything_that_names_no_branch_means_the_same(forge: Forge, tmp_path: Path) -> None:
    alice, project = await _two_branches(forge, visibility="public")
    await _change(alice, project)
    url, page = f"/projects/{project['id']}/repository", f"{forge.base}/{project['path_with_namespace']}"
    head = (await alice.api.get(f"{url}/branches/next")).body
    assert head["default"] is True
    assert (await alice.api.get(f"{url}/files/which/raw")).body == "next"
    assert (await alice.api.get(f"{url}/files/which")).body["commit_id"] == head["commit"]["id"]
    assert (await alice.api.get(f"{url}/commits")).body[0]["id"] == head["commit"]["id"]
    assert "other" in [node["path"] for node in (await alice.api.get(f"{url}/tree")).body]
    assert (await forge.anonymous.get(f"{page}/-/raw/HEAD/which")).body == "next"
    archive = await alice.api.request("HEAD", f"{url}/archive.zip")
    assert f"{project['path']}-next" in archive.headers["Content-Disposition"]
    remote = git_url(forge, project["path_with_namespace"])
    await Git(tmp_path)("clone", "--quiet", remote, "clone")
    assert (tmp_path / "clone/which").read_text() == "next"
    assert "refs/heads/next\tHEAD" in await Git(tmp_path)("ls-remote", "--symref", remote, "HEAD")


@pytest.mark.parametrize("name", ["gone", "", "v1", "..", "HEAD", "refs/heads/next"])
async def test_it_has_to_be_a_branch(forge: Forge, name: str) -> None:
    alice, project = await _two_branches(forge)
    url = f"/projects/{project['id']}"
    await alice.api.post(f"{url}/repository/tags", {"tag_name": "v1", "ref": "main"})
    answer = await alice.api.put(url, {"default_branch": name, "description": "not changed either"})
    text = f"Could not change HEAD: branch '{name}' does not exist"
    assert (answer.status, answer.body) == (400, {"message": {"base": [text]}})
    shown = (await alice.api.get(url)).body
    assert (shown["default_branch"], shown["description"]) == ("main", None)


async def test_an_empty_repository_has_none_to_change_to(forge: Forge) -> None:
    project = await forge.project()
    answer = await forge.root.put(f"/projects/{project['id']}", {"default_branch": "other"})
    assert answer.status == 400
    repeated = await forge.root.put(f"/projects/{project['id']}", {"default_branch": "main"})
    assert repeated.status == 200


async def test_the_one_that_it_is_cannot_be_deleted_and_the_one_that_it_was_can(
    forge: Forge, tmp_path: Path
) -> None:
    alice, project = await _two_branches(forge)
    await _change(alice, project)
    url = f"/projects/{project['id']}/repository/branches"
    refused = await alice.api.delete(f"{url}/next")
    text = "The default branch of a project cannot be deleted."
    assert (refused.status, refused.body) == (400, {"message": text})
    git = Git(tmp_path)
    await git.init()
    remote = git_url(forge, project["path_with_namespace"], alice)
    assert "deletion of the current branch prohibited" in await git("push", remote, ":next", fails=True)
    unprotected = await alice.api.delete(f"/projects/{project['id']}/protected_branches/main")
    assert unprotected.status == 204
    assert (await alice.api.delete(f"{url}/main")).status == 204


async def test_it_is_changed_by_maintainers_with_an_event(forge: Forge) -> None:
    alice, project = await _two_branches(forge)
    developer, maintainer = await forge.user(), await forge.user()
    await forge.member("projects", project["id"], developer, Role.DEVELOPER)
    await forge.member("projects", project["id"], maintainer, Role.MAINTAINER)
    refused = await developer.api.put(f"/projects/{project['id']}", {"default_branch": "next"})
    assert refused.status == 403
    await _change(maintainer, project)
    (event,) = (
        await alice.api.get(
            f"/projects/{project['id']}/audit_events?event_type=project_default_branch_updated"
        )
    ).body
    assert (event["details"]["from"], event["details"]["to"]) == ("main", "next")


GRANT = "ci_access: {{projects: [{{id: {path}}}]}}\n"


async def test_agents_are_granted_what_it_says(forge: Forge) -> None:
    """Endpoint 5."""
    group = await forge.group()
    agents, jobs = [await ci_project(forge, namespace_id=group["id"]) for _ in range(2)]
    made = await forge.root.post(f"{agents.url}/cluster_agents", {"name": "prod"})
    path = path_of("prod")
    await agents.commit(GRANT.format(path=jobs.path), path=path, branch="next")

    async def grants() -> int:
        sql = "SELECT count(*) FROM cluster_agent_grants WHERE agent_id = %(id)s"
        return int(await forge.database.value(sql, id=made.body["id"]))

    async def allowed() -> list[int]:
        token = await run(forge, (await jobs.job())["id"])
        answer = await forge.anonymous.get("/job/allowed_agents", headers={"JOB-TOKEN": token})
        return [agent["id"] for agent in answer.body["allowed_agents"]]

    for branch, expected in (("next", 1), ("main", 0)):
        changed = await forge.root.put(agents.url, {"default_branch": branch})
        assert changed.status == 200, changed

        async def is_so(expected: int = expected) -> bool:
            return await grants() == expected

        await until(is_so)
        assert await allowed() == [made.body["id"]] * expected


async def test_a_change_whose_process_has_died_is_followed_by_the_next(
    new_forge: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def die(*_: Any) -> None:
        raise RuntimeError

    async with new_forge() as forge:
        alice, project = await _two_branches(forge)
        with monkeypatch.context() as dying:
            dying.setattr(projects, "apply_default_branch", die)
            answer = await alice.api.put(f"/projects/{project['id']}", {"default_branch": "next"})
            assert answer.status == 500
        repositories = forge.server.app[SERVICES][REPOSITORIES]
        assert references.default_branch(repositories.open(project["id"])) == "main"
        async with watched() as life, forge.server.app[SERVICES].queue.working(*life):

            async def is_so() -> bool:
                return references.default_branch(repositories.open(project["id"])) == "next"

            await until(is_so)


async def test_a_branch_that_goes_while_it_becomes_the_default_one_harms_nothing(forge: Forge) -> None:
    alice, project = await _two_branches(forge)
    app = forge.server.app
    sql = "UPDATE projects SET default_branch = 'gone' WHERE id = %(id)s"
    async with forge.database.transaction() as transaction:
        await transaction.run(sql, id=project["id"])
    await projects.apply_default_branch(app[SERVICES], project["id"])
    await _change(alice, project)
