"""A session of a client's tests in one process, for test_fixtures.py: the last one waits for Ctrl-C."""

import json
import subprocess
import sys
import time
import unittest
from pathlib import Path

import pytest

from forgelet.testing.api import ApiError

ENDED = {"success", "failed", "canceled", "skipped"}


def test_fresh_user_group_and_project(forgelet, gitlab_user, gitlab_group, gitlab_project):
    assert gitlab_user.api.get("user")["username"] == gitlab_user.username
    assert [group["id"] for group in gitlab_user.api.get("groups")] == [gitlab_group.id]
    assert [project["id"] for project in gitlab_user.api.get("projects", owned=True)] == [gitlab_project.id]
    assert forgelet.api_of(gitlab_project.token).get(f"groups/{gitlab_group.id}")["visibility"] == "private"
    assert gitlab_user.token not in repr(gitlab_project)
    listed = subprocess.run(["git", "ls-remote", gitlab_project.git_url], capture_output=True, text=True)
    assert "refs/heads/main" in listed.stdout


@pytest.mark.parametrize("time", [1, 2])
def test_namespaces_do_not_see_each_other(gitlab_user, gitlab_project, time):
    assert gitlab_user.username.startswith("test-namespaces-do-not-see-each-other")
    assert [project["id"] for project in gitlab_user.api.get("projects")] == [gitlab_project.id]


def test_the_server(forgelet, gitlab_user):
    assert forgelet.api_url == f"{forgelet.url}/api/v4"
    assert forgelet.edge_url.startswith("http://127.0.0.1:")
    assert forgelet.api.get("user")["username"] == "root"
    assert forgelet.api.get("version")["version"].startswith("17.")
    with pytest.raises(ApiError, match="GET user answered 401") as refused:
        forgelet.api_of(None).get("user")
    assert refused.value.status == 401
    assert {"aiohttp", "api_server", "common", "click", "forgelet.command_line"} & sys.modules.keys() == set()


def test_python_gitlab(python_gitlab, gitlab_project):
    assert [project.id for project in python_gitlab.projects.list(get_all=True)] == [gitlab_project.id]


@pytest.mark.gitlab(isolation="reset")
def test_reset_of_what_is_asked_for_later(request):
    assert [user["username"] for user in request.getfixturevalue("forgelet").api.get("users")] == ["root"]


class TestMethods(unittest.TestCase):
    @pytest.fixture(autouse=True)
    def _server(self, forgelet, gitlab_user):
        self.forgelet, self.user = forgelet, gitlab_user

    @pytest.mark.gitlab(isolation="reset")
    def test_a_method_of_unittest(self):
        assert {user["username"] for user in self.forgelet.api.get("users")} == {"root", self.user.username}


@pytest.mark.gitlab(isolation="reset")
@pytest.mark.parametrize("time", [1, 2])
def test_reset(forgelet, gitlab_user, time):
    assert {user["username"] for user in forgelet.api.get("users")} == {"root", gitlab_user.username}


@pytest.mark.gitlab(isolation="reset")
@pytest.mark.parametrize("result", ["success", "failed"])
def test_pipelines_end_without_a_runner(forgelet, gitlab_user, gitlab_project, result):
    project = f"projects/{gitlab_project.id}"
    file = {
        "branch": "main",
        "content": "build: {script: make, tags: [linux]}",
        "commit_message": "CI [skip ci]",
    }
    gitlab_user.api.post(f"{project}/repository/files/.gitlab-ci.yml", file)
    wanted = {"ref": "main", "variables": [{"key": "FORGELET_RESULT", "value": result}]}
    pipeline = gitlab_user.api.post(f"{project}/pipeline", wanted)
    while (status := gitlab_user.api.get(f"{project}/pipelines/{pipeline['id']}")["status"]) not in ENDED:
        time.sleep(0.05)
    assert status == result
    assert [runner["description"] for runner in forgelet.api.get("runners/all")] == ["Built-in runner"]


def test_snapshots_and_clock(forgelet):
    kept = forgelet.snapshot()
    forgelet.api.post("groups", {"name": "later", "path": "later"})
    forgelet.restore(kept)
    assert forgelet.api.get("groups", search="later") == []
    before = forgelet.now()
    assert before < forgelet.advance(3600) <= forgelet.now()
    assert forgelet.set_clock("2042-01-01T00:00:00Z").startswith("2042-01-01T00:00:0")
    forgelet.settle()


def test_requests_and_failures(forgelet, gitlab_user):
    failure = forgelet.fail("GET", "/api/v4/user", status=429, headers={"Retry-After": "1"}, times=1)
    assert failure["left"] == 1
    with pytest.raises(ApiError, match="answered 429"):
        gitlab_user.api.get("user")
    gitlab_user.api.get("user")
    seen = forgelet.requests(user=gitlab_user.username, method="GET")
    assert [(request["path"], request["status"]) for request in seen][-1] == ("/api/v4/user", 200)
    assert 429 in [request["status"] for request in forgelet.requests(path="/api/v4/user")]
    forgelet.forget_requests(path="/api/v4/user")
    assert forgelet.requests(path="/api/v4/user", status=None) == []
    assert forgelet.requests(user=None) != []


@pytest.fixture
def cleaned_up(forgelet):
    yield
    assert forgelet.api.get("version")


def test_failures_that_are_left(forgelet, cleaned_up):
    forgelet.fail("GET", "/api/v4/version", status=502, times=5)
    assert forgelet.failures() != []


def test_a_failure_ends_with_its_test(forgelet):
    assert forgelet.failures() == []
    assert forgelet.api.get("version")


def test_the_last_one(forgelet):
    Path("waits").write_text(json.dumps([forgelet.pid, forgelet.data_dir]))
    time.sleep(600)
