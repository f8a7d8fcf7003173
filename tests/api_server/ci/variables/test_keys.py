"""A variable's key is the same wherever one is given."""

from typing import Any

from tests.support.ci import CiProject, ci_project
from tests.support.deviations import Deviations
from tests.support.forge import Forge

MANUAL = "build:\n  script: echo\n  when: manual\n"
#: What no shell takes for a variable.
WRONG = ["A-B", "A B", "é", "A.B", "A$", "=", "A\n", " A"]
RIGHT = ["A", "a_1", "_", "1", "A" * 255]


async def _places(forge: Forge, project: CiProject) -> dict[str, tuple[str, Any]]:
    """Where one is given: an address, and what is sent to it with the key."""
    (job,) = (await project.jobs(await project.pipeline(MANUAL))).values()
    where = project.url
    owner = forge.root
    schedule = await owner.post(
        f"{where}/pipeline_schedules",
        {"description": "a", "ref": "topic", "cron": "1 1 1 1 *", "active": False},
    )
    trigger = await owner.post(f"{where}/triggers", {"description": "a"})
    group = await forge.group()
    return {
        "project": (f"{where}/variables", lambda key: {"key": key, "value": "x"}),
        "group": (f"/groups/{group['id']}/variables", lambda key: {"key": key, "value": "x"}),
        "instance": ("/admin/ci/variables", lambda key: {"key": key, "value": "x"}),
        "schedule": (
            f"{where}/pipeline_schedules/{schedule.body['id']}/variables",
            lambda key: {"key": key, "value": "x"},
        ),
        "pipeline": (
            f"{where}/pipeline",
            lambda key: {"ref": "topic", "variables": [{"key": key, "value": "x"}]},
        ),
        "trigger": (
            f"{where}/trigger/pipeline",
            lambda key: {"ref": "topic", "token": trigger.body["token"], "variables": {key: "x"}},
        ),
        "played job": (
            f"{where}/jobs/{job['id']}/play",
            lambda key: {"job_variables_attributes": [{"key": key, "value": "x"}]},
        ),
    }


async def test_a_key_has_letters_digits_and_underscores_everywhere(forge: Forge) -> None:
    project = await ci_project(forge)
    deviations = Deviations()
    for place, (path, body) in (await _places(forge, project)).items():
        for key in WRONG:
            answer = await forge.root.post(path, body(key))
            with deviations.of(f"{place} {key!r}"):
                assert answer.status == 400
                assert "can contain only letters, digits and '_'." in str(answer.body["message"])
        for key in RIGHT[:1] if place in ("pipeline", "trigger", "played job", "instance") else RIGHT:
            with deviations.of(f"{place} {key!r}"):
                assert (await forge.root.post(path, body(key))).status in (200, 201)
    assert not deviations, deviations.report
    await forge.root.delete(f"/admin/ci/variables/{RIGHT[0]}")
