"""Keywords that say something to others than the runner, and those that are not supported."""

import pytest

from api_server.ci.config.plan import AutoCancel, Environment, Retry

from .planning import errors, job, jobs, plan

STOP = "stop: {script: x, when: manual, environment: {name: %s}}"


@pytest.mark.parametrize(
    ("text", "refused"),
    [
        ("spec: {inputs: {a: }}\ntest: {script: x}", "spec"),
        ("spec:\n  inputs:\n    a:\n---\ntest: {script: '$[[ inputs.a ]]'}", "spec"),
        ("test: {script: x, id_tokens: {T: {aud: x}}}", "jobs:test:id_tokens"),
        ("test: {script: x, secrets: {}}", "jobs:test:secrets"),
        ("test: {run: [{name: a, script: x}]}", "jobs:test:run"),
        ("default: {id_tokens: {T: {aud: x}}}\ntest: {script: x}", "default:id_tokens"),
        ("pages: {script: x, pages: {publish: dist}}", "jobs:pages:pages"),
        (
            "test: {script: x, environment: {name: a, kubernetes: {agent: a}}}",
            "jobs:test:environment:kubernetes",
        ),
        ("test: {script: x, artifacts: {reports: {dast: x}}}", "jobs:test:artifacts:reports:dast"),
        (
            "test: {script: x, artifacts: {reports: {performance: x}}}",
            "jobs:test:artifacts:reports:performance",
        ),
        ("test: {script: x, needs: [{project: a/b, job: c}]}", "jobs:test:needs:project"),
        (
            "test: {script: x, needs: [{project: a/b, job: c}, {project: a/b, job: d}]}",
            "jobs:test:needs:project",
        ),
        ("test: {trigger: {project: a/b, inputs: {}}}", "jobs:test:trigger:inputs"),
        (
            "test: {script: x, rules: [{exists: {paths: [a], project: b/c}}]}",
            "jobs:test:rules:rule:exists:project",
        ),
    ],
)
def test_what_gitlab_has_beyond_is_refused_by_its_name(text, refused):
    assert errors(text) == (f"{refused} is not supported by this service",)


def test_workflow_says_when_a_pipeline_is_canceled_and_its_rules_say_it_again():
    text = """
    workflow:
      auto_cancel: {on_new_commit: interruptible, on_job_failure: all}
      rules: [{if: $CI_COMMIT_TAG, auto_cancel: {on_job_failure: none}}, {when: always}]
    a: {script: x}
    """
    assert plan(text).auto_cancel == AutoCancel(on_new_commit="interruptible", on_job_failure="all")
    tag = {"CI_COMMIT_TAG": "v1", "CI_PIPELINE_SOURCE": "push"}
    assert plan(text, predefined=tag).auto_cancel == AutoCancel(
        on_new_commit="interruptible", on_job_failure="none"
    )
    assert plan("a: {script: x}").auto_cancel == AutoCancel()


@pytest.mark.parametrize(
    ("retry", "failure", "exit_code", "wanted"),
    [
        ("1", "script_failure", 1, True),
        ("{max: 1, exit_codes: 137}", "script_failure", 137, True),
        ("{max: 1, exit_codes: [137]}", "script_failure", 1, False),
        ("{max: 1, exit_codes: [137]}", "runner_system_failure", None, False),
        ("{max: 1, exit_codes: [137], when: runner_system_failure}", "runner_system_failure", None, True),
        ("{max: 1, when: runner_system_failure}", "script_failure", 1, False),
    ],
)
def test_retries_look_at_reasons_and_at_exit_codes(retry, failure, exit_code, wanted):
    found: Retry = job(f"a: {{script: x, retry: {retry}}}").retry
    assert found.wants(failure, exit_code) is wanted


def test_an_environment_says_what_stops_it():
    text = "a: {script: x, environment: {name: dev/$X, on_stop: stop, auto_stop_in: $X days}}\n"
    stop = STOP % "dev/$X, action: stop"
    assert jobs(text + stop, given={"X": "2"})["a"].environment == Environment(
        name="dev/2", on_stop="stop", auto_stop_in="2 days"
    )
    at = "a job: on_stop job stop "
    assert errors(text) == (at + "is not defined",)
    assert errors(text + "stop: {script: x}") == (at + "does not have environment defined",)
    assert errors(text + STOP % "dev/$X") == (at + "needs to have action stop defined",)
    assert errors(text + STOP % "other, action: stop") == (at + "have different environment name",)


@pytest.mark.parametrize(
    ("artifacts", "complaint"),
    [
        ("{access: some}", " access should be one of: all, developer, maintainer, none"),
        ("{access: all, public: true}", " config these keys cannot be used together: public, access"),
        ("{expose_as: a}", " paths can't be blank"),
        ("{expose_as: a, paths: ['*.txt']}", " paths can't contain '*' when used with 'expose_as'"),
        (
            "{expose_as: a/b, paths: [a]}",
            " expose as can contain only letters, digits, '-', '_' and spaces",
        ),
    ],
)
def test_artifacts_that_contradict_themselves(artifacts, complaint):
    assert errors(f"a: {{script: x, artifacts: {artifacts}}}") == (f"jobs:a:artifacts{complaint}",)


@pytest.mark.parametrize(
    ("release", "complaint"),
    [
        ("{description: a}", " config missing required keys: tag_name"),
        ("{tag_name: a, description: a, released_at: soon}", " released at must be a valid datetime"),
        (
            "{tag_name: a, description: a, assets: {links: [{name: a}]}}",
            ":assets:links config missing required keys: url",
        ),
        ("{tag_name: a, description: a, foo: 1}", " config contains unknown keys: foo"),
    ],
)
def test_a_release_says_all_that_one_needs(release, complaint):
    assert errors(f"a: {{script: x, release: {release}}}") == (f"jobs:a:release{complaint}",)


def test_lists_of_tags_and_needs_may_be_nested_as_references_leave_them():
    found = jobs(
        """
        .b: {tags: [linux], needs: [a]}
        a: {script: x}
        b: {script: x, tags: [!reference [.b, tags], big], needs: [!reference [.b, needs], [{job: c}]]}
        c: {script: x}
        """
    )["b"]
    assert (found.tags, [need.job for need in found.needs]) == (("linux", "big"), ["a", "c"])


def test_a_dependency_of_the_same_stage_is_taken_but_brings_nothing_unless_it_is_needed():
    text = "a: {script: x, stage: build}\nb: {script: x}\nc: {script: x, dependencies: [a, b]%s}"
    assert jobs(text % "")["c"].dependencies == ("a",)
    assert jobs(text % ", needs: [a, b]")["c"].dependencies == ("a", "b")


def test_a_variable_may_be_a_number_a_truth_value_or_nothing():
    found = job(
        "a: {script: x, variables: {A: true, B: , C: {expand: false}, D: 1.10, E: {value: no}, F: 017}}"
    )
    assert [(one.key, one.value, one.raw) for one in found.variables] == [
        ("A", "true", False),
        ("B", "", False),
        ("C", "", True),
        ("D", "1.1", False),
        ("E", "false", False),
        ("F", "15", False),
    ]


def test_references_reach_what_extends_has_brought():
    found = job(
        """
        .one: {variables: {A: a}, tags: [x]}
        .two: {extends: .one}
        .three: {tags: !reference [.two, tags]}
        a: {extends: .three, script: x, variables: !reference [.two, variables]}
        """
    )
    assert (found.tags, found.variables[0].value) == (("x",), "a")
