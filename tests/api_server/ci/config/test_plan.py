"""Which jobs a pipeline gets, in which order, and how they wait for each other."""

import pytest

from api_server.ci.config.pipeline import FILTERED, NO_JOBS, child_configuration
from api_server.ci.config.plan import Need, Trigger
from api_server.ci.config.variables import Variable

from .planning import MERGE_REQUEST, TAG, job, jobs, plan


def test_jobs_come_in_the_order_of_stages_and_then_of_the_file():
    found = plan(
        """
        stages: [one, two, one]
        last: {stage: .post, script: x}
        c: {stage: two, script: x}
        a: {stage: one, script: x}
        b: {stage: one, script: x}
        first: {stage: .pre, script: x}
        """
    )
    assert found.stages == (".pre", "one", "two", ".post")
    assert [(one.name, one.stage_index) for one in found.jobs] == [
        ("first", 0),
        ("a", 1),
        ("b", 1),
        ("c", 2),
        ("last", 3),
    ]


def test_without_stages_there_are_build_test_deploy_and_jobs_are_in_test():
    found = plan("a: {script: x}")
    assert (found.stages, found.jobs[0].stage) == ((".pre", "build", "test", "deploy", ".post"), "test")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a: {script: x, rules: [{if: $NO}]}", NO_JOBS),
        ("a: {script: x, rules: [{when: never}]}", NO_JOBS),
        ("a: {script: x, only: [tags]}", NO_JOBS),
        ("a: {script: x, stage: .pre}\nb: {script: x, stage: .post}", NO_JOBS),
        ("workflow: {rules: [{if: $NO}]}\na: {script: x}", FILTERED),
        ("workflow: {rules: [{when: never}]}\na: {script: x}", FILTERED),
    ],
)
def test_a_pipeline_without_jobs_says_why(text, reason):
    found = plan(text)
    assert (found.jobs, found.reason) == ((), reason)


def test_workflow_names_the_pipeline_and_sets_variables_by_rule():
    text = """
        variables: {KIND: other}
        workflow:
          name: '$KIND for $CI_COMMIT_REF_NAME'
          rules:
            - {if: $CI_COMMIT_TAG, variables: {KIND: release}}
            - when: always
        a: {script: x, rules: [{if: '$KIND == "release"'}]}
        b: {script: x}
        """
    tagged = plan(text, predefined=TAG)
    assert (tagged.name, [one.name for one in tagged.jobs]) == ("release for v1.0", ["a", "b"])
    branch = plan(text)
    assert (branch.name, [one.name for one in branch.jobs]) == ("other for main", ["b"])


@pytest.mark.parametrize(
    ("keywords", "expected"),
    [
        ("", ("on_success", False, None)),
        ("when: manual", ("manual", True, None)),
        ("when: manual, allow_failure: false", ("manual", False, None)),
        ("when: delayed, start_in: 30 min", ("delayed", False, 1800)),
        ("rules: [{when: manual}]", ("manual", False, None)),
        ("rules: [{when: manual, allow_failure: true}]", ("manual", True, None)),
        ("rules: [{when: delayed, start_in: 1 h}]", ("delayed", False, 3600)),
        ("when: manual, rules: [{if: $CI_COMMIT_BRANCH}]", ("manual", True, None)),
        ("allow_failure: true, rules: [{allow_failure: false}]", ("on_success", False, None)),
        ("rules: [{if: $NO, when: manual}, {when: on_failure}]", ("on_failure", False, None)),
        ("rules: [[{if: $NO}], [[{when: always}]]]", ("always", False, None)),
    ],
)
def test_when_and_allow_failure_come_from_the_job_and_its_first_matching_rule(keywords, expected):
    found = job(f"a: {{script: x, {keywords}}}")
    assert (found.when, found.allow_failure, found.start_in) == expected


def test_a_rule_can_set_variables_needs_and_interruptible():
    found = jobs(
        """
        build: {stage: build, script: x}
        a:
          script: x
          variables: {X: job, Y: job}
          needs: []
          rules: [{if: $CI_COMMIT_BRANCH, variables: {X: rule}, needs: [build], interruptible: true}]
        """
    )["a"]
    assert found.variables == (Variable("X", "rule"), Variable("Y", "job"))
    assert (found.needs, found.interruptible) == ((Need(job="build"),), True)


@pytest.mark.parametrize(
    ("rule", "changed", "wanted"),
    [
        ("{changes: ['docs/**/*']}", ["docs/a/b.md"], True),
        ("{changes: ['docs/**/*']}", ["src/a.py"], False),
        ("{changes: ['docs/*']}", None, True),
        ("{changes: ['docs/*']}", [], False),
        ("{changes: {paths: [Dockerfile]}}", ["Dockerfile"], True),
        ("{changes: ['$DIR/*']}", ["src/a.py"], True),
        ("{exists: ['**/Dockerfile']}", [], True),
        ("{exists: [gone]}", [], False),
        ("{exists: {paths: ['img/*']}}", [], True),
        ("{exists: {paths: ['/img/*']}}", [], False),
        ("{exists: img/Dockerfile}", [], True),
        ("{exists: /img/Dockerfile}", [], False),
        ("{changes: ['src/**']}", ["src/a.py"], True),
        ("{changes: ['src/**']}", ["src/deep/a.py"], False),
        ("{changes: ['src/{a,b}.py']}", ["src/b.py"], True),
        ("{changes: ['src/{a.py']}", ["src/a.py"], False),
        # what a variable does not give stays as it is written
        ("{changes: ['src/*$NONE']}", ["src/a.py"], False),
        ("{changes: ['src/*$NONE']}", ["src/a$NONE"], True),
        ("{if: $NO, exists: ['**/Dockerfile']}", [], False),
    ],
)
def test_rules_look_at_changed_and_existing_files(rule, changed, wanted):
    text = f"a: {{script: x, rules: [{rule}], variables: {{DIR: src}}}}"
    found = jobs(text, changed=changed, files={"img/Dockerfile": "FROM scratch"})
    assert bool(found) is wanted


@pytest.mark.parametrize(
    ("keywords", "on_branch", "on_tag", "on_merge_request"),
    [
        ("script: x", True, True, False),
        ("script: x, only: [branches]", True, False, False),
        ("script: x, only: tags", False, True, False),
        ("script: x, only: [merge_requests]", False, False, True),
        ("script: x, only: [main]", True, False, False),
        ("script: x, only: ['/^v\\d/']", False, True, False),
        ("script: x, only: [pushes]", True, True, False),
        ("script: x, only: [schedules, api]", False, False, False),
        ("script: x, except: [main]", False, True, False),
        ("script: x, except: [tags]", True, False, False),
        ("script: x, only: {refs: [branches], variables: [$CI_COMMIT_BRANCH]}", True, False, False),
        ("script: x, only: {refs: [branches], variables: [$NO]}", False, False, False),
        ("script: x, except: {refs: [tags], variables: [$CI_COMMIT_BRANCH]}", False, False, False),
        ("script: x, only: {changes: [a]}", True, True, False),
        ("script: x, only: {refs: [merge_requests], changes: [a]}", False, False, True),
        ("script: x, only: [main@group/app]", True, False, False),
        ("script: x, only: [main@group/other]", False, False, False),
        ("script: x, only: ['/^v\\d/@group/app']", False, True, False),
        ("script: x, except: [tags@group/app]", True, False, False),
        ("script: x, rules: [{when: always}]", True, True, True),
    ],
)
def test_only_and_except(keywords, on_branch, on_tag, on_merge_request):
    text = f"a: {{{keywords}}}"
    assert bool(jobs(text)) is on_branch
    assert bool(jobs(text, predefined=TAG)) is on_tag
    assert bool(jobs(text, predefined=MERGE_REQUEST)) is on_merge_request


def test_with_workflow_rules_jobs_are_for_every_kind_of_pipeline():
    assert jobs("workflow: {rules: [{when: always}]}\na: {script: x}", predefined=MERGE_REQUEST)


def test_variables_of_the_pipeline_are_stronger_than_the_files_and_predefined_ones_weaker():
    text = """
        variables:
          {X: global, Y: global, CI_PIPELINE_SOURCE: mine, RAW: {value: $X, expand: false}, EMPTY: '', N: 0}
        a: {script: x, variables: {X: job}, rules: [{if: '$X == "given" && $CI_PIPELINE_SOURCE == "mine"'}]}
        """
    assert jobs(text) == {}
    found = job(text, given={"X": "given"})
    assert {one.key: (one.value, one.raw) for one in found.variables} == {
        "X": ("job", False),
        "Y": ("global", False),
        "CI_PIPELINE_SOURCE": ("mine", False),
        "RAW": ("$X", True),
        "EMPTY": ("", False),
        "N": ("0", False),
    }


def test_inherit_variables_keeps_global_ones_out():
    found = jobs(
        """
        variables: {X: 1, Y: 2}
        a: {script: x, inherit: {variables: false}, variables: {Z: 3}}
        b: {script: x, inherit: {variables: [Y]}}
        """
    )
    assert [[one.key for one in each.variables] for each in found.values()] == [["Z"], ["Y"]]


def test_names_that_others_refer_to_are_expanded():
    found = job(
        """
        variables: {TARGET: eu}
        a:
          script: x
          tags: [$TARGET, linux, linux]
          resource_group: $TARGET-$CI_COMMIT_REF_NAME
          environment: {name: review/$CI_COMMIT_REF_NAME, url: 'https://$CI_ENVIRONMENT_SLUG.example.org'}
        """
    )
    assert (found.tags, found.resource_group) == (("eu", "linux"), "eu-main")
    assert (found.environment.name, found.environment.url) == (
        "review/main",
        "https://$CI_ENVIRONMENT_SLUG.example.org",
    )


@pytest.mark.parametrize(
    ("keyword", "expected"),
    [
        ("group/$APP", Trigger(project="group/app")),
        (
            "{project: group/app, branch: $CI_COMMIT_REF_NAME, strategy: depend}",
            Trigger(project="group/app", branch="main", depend=True),
        ),
        ("{include: /ci/child.yml}", Trigger(include=("/ci/child.yml",))),
        ("{include: {local: a.yml}}", Trigger(include=("a.yml",))),
        ("{include: [a.yml, {local: b.yml}]}", Trigger(include=("a.yml", "b.yml"))),
        (
            "{include: [{project: g/$APP, file: [a.yml, $APP.yml]}, {remote: 'https://a.org/a.yml'}]}",
            Trigger(
                include=(
                    {"project": "g/app", "file": ["a.yml", "app.yml"]},
                    {"remote": "https://a.org/a.yml"},
                )
            ),
        ),
        (
            "{include: a.yml, forward: {yaml_variables: false, pipeline_variables: true}}",
            Trigger(include=("a.yml",), forward_yaml_variables=False, forward_pipeline_variables=True),
        ),
    ],
)
def test_triggers(keyword, expected):
    found = job(f"variables: {{APP: app}}\na: {{trigger: {keyword}}}")
    assert (found.kind, found.trigger) == ("bridge", expected)


def test_a_child_pipeline_is_planned_from_the_files_that_its_bridge_includes():
    files = {"a.yml": "a: {script: x}", "b.yml": "b: {script: x}"}
    assert set(jobs(child_configuration(("a.yml", {"local": "/b.yml"})), files=files)) == {"a", "b"}


def test_a_cache_key_of_files_changes_with_them():
    text = "a: {script: x, cache: {key: {files: [lock], prefix: p}, paths: [d]}}"
    keys = {job(text, files={"lock": content}).cache[0].key for content in ("1", "1", "2")}
    assert len(keys) == 2
    assert job(text).cache[0].key == "p-default"
