"""Tests with a server that was started by hand, for test_by_hand.py."""

import pytest

from forgelet.testing.api import ApiError


def test_users_and_projects(forgelet, gitlab_project):
    assert forgelet.data_dir is None
    assert [one["id"] for one in gitlab_project.owner.api.get("projects", owned=True)] == [gitlab_project.id]


def test_controls(forgelet):
    with pytest.raises(ApiError, match=r"has no controls: start it by `forgelet up --testing`"):
        forgelet.reset()


@pytest.mark.gitlab(version="17.11")
def test_its_version(gitlab_user):
    assert gitlab_user.api.get("version")["version"].startswith("17.11.")


def test_what_is_left_of_failures_of_a_server_that_is_gone(forgelet, monkeypatch):
    from forgelet.testing.server import Forgelet, Ready

    gone = Forgelet(Ready("http://127.0.0.1:1", "token"))
    gone._failures.append("1")  # as of a process that has ended since
    gone.stop_failing()


@pytest.mark.gitlab(version="9.0")
def test_another_version(gitlab_user):
    raise AssertionError


@pytest.mark.gitlab(tier="free")
def test_a_tier(gitlab_user):
    raise AssertionError
