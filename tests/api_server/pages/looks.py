"""The pages that tests open in a browser, and scenes that create their content."""

from collections.abc import Awaitable, Callable
from typing import Any, Literal

import attrs

from api_server.accounts import email_queries, emails, password_queries, passwords
from api_server.operations import figures
from api_server.state.queue import enqueue
from api_server.state.secrets import PASSWORD_RESET_TOKEN, digest, new_token
from api_server.web.context import SERVICES
from api_server.web.routes import Role
from tests.api_server.pages.ci.conftest import CONFIG, LOG, handed_out
from tests.support.browser import PASSWORD, sign_in_link
from tests.support.ci import CiProject, bring
from tests.support.forge import Forge, Person
from tests.support.invitations import page_of
from tests.support.merge_requests import new_project, open_merge_request
from tests.support.ports import free_port
from tests.support.zips import archive

ADMINISTRATORS_PATHS = [
    "/admin", "/admin/users", "/admin/users?search=nobody-is-called-so", "/admin/tokens", "/admin/runners",
    "/admin/projects", "/admin/mirrors", "/admin/deliveries", "/admin/deliveries/{delivery}", "/admin/edges",
    "/admin/audit_events", "/admin/background_tasks", "/admin/background_tasks?status=todo", "/admin/settings",
]  # fmt: skip
_DELIVERIES = "SELECT max(id) FROM status_check_deliveries"


async def administrators_things(forge: Forge, things: dict[str, Any]) -> None:
    """Create a mirror and a receiver that do not answer, a runner that was never there, an unknown task, and figures
    of three minutes. Do not wait until all of these have failed: pages have to be readable in all states."""
    owner, nobody = things["_owner"], f"http://127.0.0.1:{free_port()}"
    project = await new_project(forge, owner)
    allowed = {"outbound_local_requests_whitelist": ["127.0.0.1"]}
    assert (await forge.root.put("/application/settings", allowed)).status == 200
    mirror = {"url": f"{nobody}/a-target-with-quite-a-long-name/and-a-path-of-its-own.git", "enabled": True}
    assert (await owner.api.post(f"/projects/{project['id']}/remote_mirrors", mirror)).status == 201
    check = {"name": "Quality assurance", "external_url": nobody}
    assert (await owner.api.post(f"/projects/{project['id']}/external_status_checks", check)).status == 201
    await open_merge_request(owner, project)
    things["delivery"] = await forge.database.value(_DELIVERIES)
    runner = {"runner_type": "instance_type", "description": "builder", "tag_list": "linux,docker"}
    assert (await forge.root.post("/user/runners", runner)).status == 201
    async with forge.database.transaction() as transaction:
        await enqueue(transaction, "of_another_version", words="x" * 300)
    await figures.keep_sample(forge.database, dict.fromkeys(figures.SAMPLE_NAMES, 3.0))


SETTINGS_PATHS = [
    "/{project}/-/audit_events",
    "/{project}/-/audit_events?event_type=none",
    "/groups/{group}/-/audit_events",
    "/{project}/-/project_members",
    "/groups/{group}/-/group_members",
    "/{project}/-/edit",
    "/groups/{group}/-/edit",
    "/{project}/-/settings/repository",
    "/{project}/-/settings/ci_cd",
    "/{project}/-/settings/ci_cd?reveal=true",
    "/groups/{group}/-/settings/ci_cd",
    "/{project}/-/jobs/{stuck_job}",
    "/{project}/-/pipelines/{stuck_pipeline}",
    "/{project}/-/settings/merge_requests",
    "/{project}/-/settings/merge_requests/status_checks/{check}",
    "/{project}/-/settings/merge_requests/status_checks/{check}/deliveries/{check_delivery}",
]
_DELIVERY = "SELECT max(id) FROM status_check_deliveries WHERE check_id = %(check_id)s"


async def settings(forge: Forge, things: dict[str, Any]) -> None:
    """Create members and invitations, mirrors of both kinds, and protected refs."""
    owner = things["_owner"]
    project = (await owner.api.get(f"/projects/{things['project'].replace('/', '%2F')}")).body
    url = f"/projects/{project['id']}"
    await forge.new_member(project["id"], Role.DEVELOPER, "devon")
    await forge.new_member(project["id"], Role.MAINTAINER, "mary-with-quite-a-long-user-name")
    for path in (f"{url}/invitations", f"/groups/{project['namespace']['id']}/invitations"):
        invited = {"email": "someone.new@example.org", "access_level": 30, "expires_at": "2999-12-31"}
        assert (await owner.api.post(path, invited)).status == 201
    nobody = f"http://127.0.0.1:{free_port()}"
    for target in (
        {"url": f"{nobody}/target.git", "enabled": True},
        {"url": "ssh://git@198.51.100.7/team/copy.git", "auth_method": "ssh_public_key", "enabled": False},
    ):
        assert (await owner.api.post(f"{url}/remote_mirrors", target)).status == 201
    for branch in ("main", "release/*"):
        assert (await owner.api.post(f"{url}/protected_branches", {"name": branch})).status in (201, 409)
    assert (await owner.api.post(f"{url}/protected_tags", {"name": "v*"})).status == 201
    variables = [
        {"key": "DEPLOY_TOKEN", "value": "not-to-be-seen", "masked": True, "protected": True},
        {"key": "A_FILE", "value": "x" * 300, "variable_type": "file", "environment_scope": "review/*"},
        {
            "key": "NEVER",
            "value": "shown-to-nobody",
            "masked_and_hidden": True,
            "description": "Of the registry",
        },
    ]
    for path in (f"{url}/variables", f"/groups/{project['namespace']['id']}/variables"):
        for variable in variables:
            assert (await owner.api.post(path, variable)).status == 201
    assert (await owner.api.post(f"{url}/triggers", {"description": "Nightly"})).status == 201
    other = (await owner.api.get(f"/projects/{things['empty'].replace('/', '%2F')}")).body
    allowed = {"target_project_id": other["id"]}
    assert (await owner.api.post(f"{url}/job_token_scope/allowlist", allowed)).status == 201
    allowed = {"target_group_id": project["namespace"]["id"]}
    assert (await owner.api.post(f"{url}/job_token_scope/groups_allowlist", allowed)).status == 201
    waits = "build:\n  script: make\n  tags: [macos]\n"
    waiting = CiProject(forge, project["id"], project["path_with_namespace"], owner)
    things["stuck_pipeline"] = (pipeline := await waiting.pipeline(waits, branch="stuck"))["id"]
    things["stuck_job"] = (await waiting.jobs(pipeline))["build"]["id"]
    checks = (await owner.api.get(f"{url}/external_status_checks")).body
    things["check"] = checks[0]["id"]
    things["check_delivery"] = await forge.database.value(_DELIVERY, check_id=things["check"])


#: Names in the addresses of pages: `{project}` is the full path of a project, and so on.
Things = dict[str, Any]
Scene = Callable[[Forge, Things], Awaitable[None]]
#: The visitor: anonymous, the owner of the scenes' content, or an administrator.
Who = Literal["stranger", "owner", "boss"]


@attrs.frozen
class Look:
    """One page; `path` has names of things in braces."""

    path: str
    who: Who = "owner"
    status: int = 200
    #: The address of a form that is sent unchanged; the page shows it again, with the errors.
    refused: str = ""


#: A text with everything that Markdown has.
GUIDE = """\
# A guide

[![a badge](https://badges.example/x.svg)](https://ci.example) ![a pixel](pixel.png)

## Code and `code`

```python
@cached
class Value(Base):  # a comment
    text = f"{1} {None}"
```

| left | middle | right |
|:-----|:------:|------:|
| 1 | `2` | WIDE |

- [x] done, see !1 and [below](#notes)
- [ ] to do
  1. first

> quoted *text* ~~gone~~ <kbd>Ctrl</kbd> <mark>marked</mark>

<details open><summary>More</summary>

Text with a note.[^1]

</details>

---

### Notes

[^1]: The note.
""".replace("WIDE", "wide" * 12)
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="

LOOKS: list[Look] = [
    Look("/", "stranger"),
    Look("/explore/groups", "stranger"),
    Look("/help", "stranger"),
    Look("/-/sign_in?return_to=/x", "stranger"),
    Look("/-/sign_in/{sign_in}", "stranger"),
    Look("/-/sign_in/gone", "stranger", 404),
    Look("/-/password/new", "stranger"),
    Look("/-/password/{reset}", "stranger"),
    Look("/-/password/gone", "stranger", 404),
    Look("/-/emails/{email}/{confirmation}", "stranger"),
    Look("/-/invites/{invite}", "stranger"),
    Look("/-/invites/{invite}"),
    Look("/{project}", "stranger"),
    Look("/{project}/-/blob/main/src/code.py", "stranger"),
    Look("/groups/{group}", "stranger"),
    Look("/-/nothing/like/that", "stranger", 404),
    Look("/"),
    Look("/?search=nothing-is-called-so"),
    Look("/explore/projects"),
    Look("/dashboard/groups"),
    Look("/-/sign_out"),
    Look("/-/user_settings"),
    Look("/-/user_settings/password"),
    Look("/-/user_settings/personal_access_tokens"),
    Look("/-/user_settings/active_sessions"),
    Look("/{owner}"),
    Look("/projects/new"),
    Look("/projects/new", status=400, refused="/projects"),
    Look("/groups/new"),
    Look("/groups/new", status=400, refused="/groups"),
    Look("/{project}"),
    Look("/{empty}"),
    Look("/{empty}/-/tree/main"),
    Look("/{project}/-/tree/main"),
    Look("/{project}/-/tree/main/src"),
    Look("/{project}/-/blob/main/picture.bin"),
    Look("/{project}/-/blob/main/docs/guide.md"),
    Look("/{project}/-/blob/main/docs/guide.md?plain=1"),
    Look("/{project}/-/blob/main/docs/pixel.png"),
    Look("/{project}/-/blame/main/src/code.py"),
    Look("/{project}/-/tree/main/docs"),
    Look("/{project}/-/new/main/src"),
    Look("/{project}/-/new/main/src", status=400, refused="/{project}/-/create/main/src"),
    Look("/{project}/-/edit/main/src/code.py"),
    Look("/{project}/-/edit/main/picture.bin", status=422),
    Look("/{project}/-/delete/main/src/code.py"),
    Look("/{project}/-/upload/main"),
    Look("/{project}/-/commits/main"),
    Look("/{project}/-/commit/{sha}"),
    Look("/{project}/-/compare/main...topic/one"),
    Look("/{project}/-/branches"),
    Look("/{project}/-/tags"),
    Look("/{project}/-/releases"),
    Look("/{project}/-/releases/v1"),
    Look("/{project}/-/releases/v1/edit"),
    Look("/{project}/-/releases/new"),
    Look("/{project}/-/releases/new", status=400, refused="/{project}/-/releases"),
    Look("/{project}/-/branches/new"),
    Look("/{project}/-/tags/new"),
    Look("/{project}/-/pipelines", "stranger"),
    Look("/{project}/-/pipelines"),
    Look("/{project}/-/pipelines?status=canceled"),
    Look("/{project}/-/pipelines/{pipeline}"),
    Look("/{project}/-/pipelines/new"),
    Look("/{project}/-/pipelines/new", status=400, refused="/{project}/-/pipelines"),
    Look("/{project}/-/pipelines/new?ref=inputs"),
    Look("/{project}/-/pipeline_schedules"),
    Look("/{project}/-/pipeline_schedules/new"),
    Look("/{project}/-/pipeline_schedules/{schedule}/edit"),
    Look("/{project}/-/pipeline_schedules/{schedule_with_inputs}/edit"),
    Look("/{project}/-/jobs"),
    Look("/{project}/-/jobs/{job}"),
    Look("/{project}/-/jobs/{failed_job}"),
    Look("/{project}/-/jobs/{manual_job}"),
    Look("/{project}/-/jobs/{job}/artifacts/browse"),
    Look("/{project}/-/merge_requests"),
    Look("/{project}/-/merge_requests/1"),
    Look("/{project}/-/merge_requests/1", status=400, refused="/{project}/-/merge_requests/1/notes"),
    Look("/{project}/-/merge_requests/1/edit"),
    Look("/{project}/-/merge_requests/new"),
    Look("/{project}/-/merge_requests/new?source_branch=topic/one"),
    Look("/{long}"),
    Look("/{long}/-/tree/{long_branch}"),
    Look("/{long}/-/merge_requests/1"),
    Look("/nobody-has-this", "owner", 404),
    Look("/admin/application_settings/repository", "owner", 403),
    Look("/admin/application_settings/repository", "boss"),
    *(Look(path, "boss") for path in ADMINISTRATORS_PATHS),
    *(Look(path) for path in SETTINGS_PATHS),
    Look("/{project}/-/settings/repository", status=400, refused="/{project}/-/settings/repository/mirrors"),
    Look("/{project}/-/project_members", status=422, refused="/{project}/-/project_members/invite"),
]


async def people(forge: Forge, things: Things) -> None:
    things["_owner"] = await forge.user("owner", password=PASSWORD)
    things["_boss"] = await forge.user("boss", password=PASSWORD, admin=True)
    things["owner"] = things["_owner"].username


async def repositories(forge: Forge, things: Things) -> None:
    """Create a public project in a group with a history, a branch, a tag and a release; and an empty project."""
    owner: Person = things["_owner"]
    group = await forge.group(owner, description="What the pages are looked at with")
    things["group"] = group["full_path"]
    made = await forge.project(
        owner, namespace_id=group["id"], visibility="public", description="A project with all there is"
    )
    things["project"] = made["path_with_namespace"]
    things["empty"] = (await forge.project(owner))["path_with_namespace"]
    url = f"/projects/{made['id']}/repository"
    long = "x" * 200
    files = {
        "README.md": f"# A project\n\nWith a README that has {long} in it.\n\n<script>alert(1)</script>\n",
        "docs/guide.md": GUIDE,
        "src/code.py": f"def main() -> None:\n    print('{long}')\n",
        "src/with a space & more #1.txt": "odd\n",
    }
    actions = [{"action": "create", "file_path": path, "content": text} for path, text in files.items()]
    actions.append({"action": "create", "file_path": "picture.bin", "content": "AAEC", "encoding": "base64"})
    actions.append(
        {"action": "create", "file_path": "docs/pixel.png", "content": PIXEL, "encoding": "base64"}
    )
    first = {"branch": "main", "commit_message": "Start\n\nWith a body <b>.", "actions": actions}
    started = await owner.api.post(f"{url}/commits", first)
    assert started.status == 201, started
    change = {"action": "update", "file_path": "src/code.py", "content": "def main() -> None:\n    pass\n"}
    second = {"branch": "topic/one", "start_branch": "main", "commit_message": "Do less", "actions": [change]}
    changed = await owner.api.post(f"{url}/commits", second)
    assert changed.status == 201
    things["sha"] = changed.body["id"]
    tag: dict[str, Any] = {"tag_name": "v1", "ref": "main", "name": "The first", "description": "It works.\n"}
    link = {"name": "A program", "url": "https://example.org/program", "link_type": "package"}
    tag["assets"] = {"links": [link]}
    assert (await owner.api.post(f"/projects/{made['id']}/releases", tag)).status == 201


INPUTS = """
spec:
  inputs:
    environment: {options: [staging, production], description: Where to deploy.}
    replicas: {type: number, default: 2, description: How many of them run at a time.}
    dry-run: {type: boolean, default: false}
    steps: {type: array, default: [make, make check]}
    note: {default: "What is said\\nwhen it is done", description: For the people who wait.}
    version: {regex: '^v\\d+$'}
---
deploy: {script: "./deploy $[[ inputs.environment ]]"}
"""


async def pipelines(forge: Forge, things: Things) -> None:
    """Create a pipeline with stages, needs, a child and a failed job; and a merge request with an unreachable check."""
    owner: Person = things["_owner"]
    found = (await owner.api.get(f"/projects/{things['project'].replace('/', '%2F')}")).body
    project = CiProject(forge, found["id"], found["path_with_namespace"], owner)
    await project.commit("one:\n  script: echo\n  tags: [nobody]\n", path="child.yml", branch="ci")
    jobs = await project.jobs(made := await project.pipeline(CONFIG, branch="ci"))
    things["pipeline"] = made["id"]
    things |= {name: jobs[job]["id"] for name, job in _JOBS.items()}
    runner = await handed_out(project)
    await runner.log(LOG)
    await runner.upload(archive(**{"out/a.txt": b"hello", "top.txt": b"t"}))
    await runner.finish()
    await (await handed_out(project)).finish("failed", failure_reason="script_failure", exit_code=3)
    await bring(forge, things["manual_job"], "manual")
    nightly = {"description": "Nightly", "ref": "main", "cron": "0 4 * * *"}
    things["schedule"] = (await owner.api.post(f"{project.url}/pipeline_schedules", nightly)).body["id"]
    await project.commit(INPUTS, branch="inputs")
    nightly |= {
        "description": "With inputs",
        "ref": "inputs",
        "inputs": [{"name": "steps", "value": ["make"]}],
    }
    made = (await owner.api.post(f"{project.url}/pipeline_schedules", nightly)).body
    things["schedule_with_inputs"] = made["id"]
    variable = {"key": "DEEP", "value": "yes"}
    await owner.api.post(f"{project.url}/pipeline_schedules/{things['schedule']}/variables", variable)
    check = {"name": "scanner", "external_url": "http://unreachable.invalid/hook"}
    await owner.api.post(f"{project.url}/external_status_checks", check)
    opened = await open_merge_request(owner, found, description="What it does\n\n- a list", labels="one,two")
    assert opened["iid"] == 1
    await owner.api.post(f"{project.url}/merge_requests/1/notes", {"body": "Looks good"})


async def long_names(forge: Forge, things: Things) -> None:
    """Create a project whose path, branch, label and status check have the longest possible names without a space."""
    owner: Person = things["_owner"]
    made = await forge.project(owner, name="N" * 200, path="p" * 200, initialize_with_readme=True)
    things["long"], things["long_branch"] = made["path_with_namespace"], "b" * 180
    check = {"name": "C" * 200, "external_url": "https://203.0.113.1/hook"}
    assert (await owner.api.post(f"/projects/{made['id']}/external_status_checks", check)).status == 201
    action = {"action": "create", "file_path": "f" * 150, "content": "x"}
    commit = {"branch": things["long_branch"], "start_branch": "main", "commit_message": "m" * 200}
    url = f"/projects/{made['id']}/repository/commits"
    assert (await owner.api.post(url, commit | {"actions": [action]})).status == 201
    request = {"source_branch": things["long_branch"], "target_branch": "main", "title": "T" * 200}
    labels = ",".join(["L" * 200, *(f"label-{number}" for number in range(98))])
    opened = await owner.api.post(f"/projects/{made['id']}/merge_requests", request | {"labels": labels})
    assert opened.status == 201, opened


async def mailed_links(forge: Forge, things: Things) -> None:
    """Create the pages to which the links of mails lead, and a link that signs in."""
    owner: Person = things["_owner"]
    vault = forge.server.app[SERVICES].vault
    absent = await forge.user()  # the link is valid until its person signs in
    things["sign_in"] = (await sign_in_link(forge, absent)).rpartition("/")[2]
    things["invite"] = (await page_of(forge, "someone.new@example.org")).rpartition("/")[2]
    added = (await owner.api.post("/user/emails", {"email": "second@example.org"}, expect=201)).body
    email = await email_queries.find(forge.database, added["id"])
    assert email is not None
    things["email"], things["confirmation"] = email.id, emails.confirmation_token(vault, email)
    token = new_token(PASSWORD_RESET_TOKEN)
    things["reset"] = token
    async with forge.database.transaction() as transaction:
        until = transaction.now + passwords.LIFETIME
        await password_queries.keep(transaction, owner.id, digest(token), until)


_JOBS = {"job": "compile", "failed_job": "lint", "manual_job": "release"}
#: The scenes, in the order in which they are created.
SCENES: list[Scene] = [
    people, repositories, pipelines, long_names, administrators_things, settings,
    mailed_links,
]  # fmt: skip
