"""A session of a client's tests, each of them in each of two workers, for test_shared.py: both wait to be killed."""

import json
import os
import time
from pathlib import Path

import pytest

from forgelet.testing.api import ApiError

pytestmark = pytest.mark.gitlab(tier="free", version="16.11")
WORKER = os.environ["PYTEST_XDIST_WORKER"]


@pytest.mark.parametrize("number", range(8))
def test_all_that_there_is_is_ours(forgelet, gitlab_user, gitlab_project, number):
    assert [project["id"] for project in gitlab_user.api.get("projects")] == [gitlab_project.id]


def test_a_server_of_its_kind(forgelet, gitlab_user, gitlab_project):
    assert forgelet.api.get("version")["version"].startswith("16.11")
    with pytest.raises(ApiError) as refused:
        gitlab_user.api.get(f"projects/{gitlab_project.id}/external_status_checks")
    assert refused.value.status in (403, 404)


def test_a_server_of_its_kind_that_is_asked_for_later(request):
    assert request.getfixturevalue("forgelet").api.get("version")["version"].startswith("16.11")


@pytest.mark.gitlab(isolation="reset")
def test_no_reset(forgelet):
    raise AssertionError("it was reset under the others' tests")


def test_no_reset_by_hand(forgelet):
    from forgelet.testing.server import SharedError

    for change in (forgelet.reset, lambda: forgelet.advance(1), lambda: forgelet.restore("start")):
        with pytest.raises(SharedError, match="under the tests of others"):
            change()


def test_the_last_one(forgelet):
    Path(f"waits-{WORKER}").write_text(json.dumps([forgelet.pid, forgelet.data_dir]))
    time.sleep(600)
