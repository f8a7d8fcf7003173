"""Namespaces: paths and names, and the keys and types of the bodies that GitLab's clients expect."""

import asyncio
from typing import Any

import gitlab
import pytest

from api_server.web.routes import Role
from tests.support.forge import Forge, Person, new_name


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
    """One of each kind: its path below the API."""
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
    """Clients that look after sharing ask for what there is; sharing itself is not here."""
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
    """As one whose issues are switched off: programs that look for theirs find none and go on."""
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
