"""The jobs of a pipeline, their order, their multiplication, and how they wait for each other."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api_server.ci.config.jobs import MAX_KEY_FILES
from api_server.ci.config.pipeline import FILTERED, NO_JOBS, child_configuration
from api_server.ci.config.plan import Need, Trigger, from_json, to_json
from api_server.ci.config.variables import Variable

from .planning import MERGE_REQUEST, TAG, errors, job, jobs, plan

#: The advice of the error about a need that rules have removed.
NOT_THERE = (
    "This might be because of the only, except, or rules keywords. "
    "To need a job that sometimes does not exist in the pipeline, use needs:optional."
)


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
        # a variable without a value stays as it is written
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
        ("script: x, only: [push]", True, True, False),
        ("script: x, only: [merge_request]", False, False, True),
        ("script: x, except: [push]", False, False, False),
        ("script: x, only: [schedules, api]", False, False, False),
        ("script: x, only: {kubernetes: active}", False, False, False),
        ("script: x, except: {kubernetes: active}", True, True, False),
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


def test_the_files_of_a_cache_key_may_be_patterns_and_caches_of_the_same_files_have_different_keys():
    text = "a: {script: x, cache: [{key: {files: ['**/lock']}, paths: [a]}, {key: {files: ['*/lock']}, paths: [b]}]}"
    files = {"a/lock": "1", "b/c/lock": "2"}
    first, second = [cache.key.split("-") for cache in job(text, files=files).cache]
    assert (first[0], second[0]) == ("0", "1")
    assert first[1] != second[1]
    changed = [cache.key.split("-") for cache in job(text, files=files | {"b/c/lock": "3"}).cache]
    assert (changed[0][1] == first[1], changed[1]) == (False, second)
    assert [cache.key for cache in job(text).cache] == ["0-default", "1-default"]
    many = {f"{number}/lock": "" for number in range(MAX_KEY_FILES + 1)}
    assert errors(text, files=many) == (
        f"cache:key:files `**/lock` stands for more than {MAX_KEY_FILES} files",
    )


def test_parallel_makes_numbered_jobs_and_needs_wait_for_all_of_them():
    found = jobs(
        """
        a: {stage: build, parallel: 3, script: x}
        b: {script: x, needs: [a]}
        c: {script: x, needs: ['a 2/3']}
        d: {script: x, dependencies: [a]}
        """
    )
    assert [(one.node_index, one.node_total) for one in found.values()][:3] == [(1, 3), (2, 3), (3, 3)]
    assert [need.job for need in found["b"].needs] == ["a 1/3", "a 2/3", "a 3/3"]
    assert [need.job for need in found["c"].needs] == ["a 2/3"]
    assert found["d"].dependencies == ("a 1/3", "a 2/3", "a 3/3")


def test_a_matrix_makes_a_job_for_each_row_and_its_variables_reach_rules_and_tags():
    found = jobs(
        """
        deploy:
          parallel: {matrix: [{CLOUD: aws, SIZE: [s, m]}, {CLOUD: [gcp, ovh]}]}
          tags: [$CLOUD]
          script: x
          rules: [{if: '$CLOUD != "ovh"'}]
        """
    )
    assert {name: one.tags for name, one in found.items()} == {
        "deploy: [aws, s]": ("aws",),
        "deploy: [aws, m]": ("aws",),
        "deploy: [gcp]": ("gcp",),
    }
    assert found["deploy: [aws, m]"].variables == (Variable("CLOUD", "aws"), Variable("SIZE", "m"))


def test_a_need_may_be_some_rows_of_a_matrix():
    found = jobs(
        """
        a: {stage: build, script: x, parallel: {matrix: [{CLOUD: [aws, gcp], SIZE: [s, m]}]}}
        b: {script: x, needs: [{job: a, artifacts: false, parallel: {matrix: [{CLOUD: aws, SIZE: [s, m]}]}}]}
        c: {script: x, needs: [{job: a, parallel: {matrix: [{CLOUD: aws, SIZE: s}, {CLOUD: gcp, SIZE: m}]}}]}
        """
    )
    assert [need.job for need in found["b"].needs] == ["a: [aws, s]", "a: [aws, m]"]
    assert {need.artifacts for need in found["b"].needs} == {False}
    assert [need.job for need in found["c"].needs] == ["a: [aws, s]", "a: [gcp, m]"]
    text = "a: {script: x, parallel: {matrix: [{A: b}]}}\n"
    text += "b: {script: x, needs: [{job: a, parallel: {matrix: [{A: %s}]}}]}"
    assert errors(text % "c") == ("b job: undefined need: a: [c]",)


@pytest.mark.parametrize("parallel", ["2", "{matrix: [{A: [a]}, {A: b}]}"])
def test_of_jobs_of_one_name_the_later_one_counts(parallel):
    name = "t 1/2" if parallel == "2" else "t: [a]"
    other = name.replace("1/2", "2/2").replace("[a]", "[b]")
    several = f"t: {{script: several, parallel: {parallel}}}\n"
    single = f"'{name}': {{script: single%s}}\n"
    needy = "n: {script: x, needs: [t]}\n"
    found = jobs(several + single % "" + needy)
    assert [(one.name, one.script, one.node_index) for one in found.values()] == [
        (name, ("single",), None),
        (other, ("several",), 2),
        ("n", ("x",), None),
    ]
    assert [need.job for need in found["n"].needs] == [name, other]
    assert jobs(single % "" + several)[name].script == ("several",)
    # the rules of the later definition decide, and the earlier one does not exist
    gone = jobs(several + single % ", rules: [{if: $NONE}]" + "n: {script: x, needs: [t]}")
    assert list(gone) == [other, "n"]
    assert errors(several + single % ", rules: [{if: $NONE}]" + f"n: {{script: x, needs: ['{name}']}}") == (
        f"'n' job needs '{name}' job, but '{name}' does not exist in the pipeline. {NOT_THERE}",
    )


def test_a_value_of_a_matrix_may_be_empty():
    found = jobs(
        "t: {script: x, parallel: {matrix: [{A: '', B: [b, '']}]}}\nn: {script: x, needs: ['t: [, b]']}"
    )
    assert list(found) == ["t: [, b]", "t: [, ]", "n"]


def test_of_equal_rows_of_a_matrix_the_last_one_counts():
    found = jobs("t: {script: x, parallel: {matrix: [{A: [a, b]}, {B: a}]}}")
    assert [(one.name, one.variables[0].key, one.node_index, one.node_total) for one in found.values()] == [
        ("t: [a]", "B", 3, 3),
        ("t: [b]", "A", 2, 3),
    ]


def test_a_matrix_is_bounded_before_it_is_built():
    axes = ", ".join(f"A{n}: [{', '.join('abcdefghij')}]" for n in range(12))
    assert errors(f"a: {{script: x, parallel: {{matrix: [{{{axes}}}]}}}}") == (
        "jobs:a:parallel config generates too many jobs (maximum is 200)",
    )


def test_a_pipeline_has_at_most_a_thousand_jobs():
    text = "\n".join(f"j{n}: {{script: x, parallel: 200}}" for n in range(6))
    assert errors(text) == ("The number of jobs exceeds the limit of 1000",)


def test_a_file_has_at_most_a_hundred_triggers():
    text = "a: {trigger: {include: a.yml}, parallel: {matrix: [{N: [%s]}]}}"
    assert len(jobs(text % ", ".join(map(str, range(100))))) == 100
    assert errors(text % ", ".join(map(str, range(101)))) == (
        "The number of trigger jobs exceeds the limit of 100",
    )


def test_needs_say_whose_artifacts_are_downloaded():
    found = jobs(
        """
        a: {stage: build, script: x}
        b: {stage: build, script: x}
        all: {script: x}
        none: {script: x, dependencies: []}
        named: {script: x, dependencies: [a]}
        needed: {script: x, needs: [a, {job: b, artifacts: false}]}
        both: {script: x, needs: [a, b], dependencies: [b]}
        neither: {script: x, needs: [], dependencies: [b]}
        at_once: {script: x, needs: []}
        """
    )
    assert {name: (one.needs and len(one.needs), one.dependencies) for name, one in found.items()} == {
        "a": (None, None),
        "b": (None, None),
        "all": (None, None),
        "none": (None, ()),
        "named": (None, ("a",)),
        "needed": (2, ("a",)),
        "both": (2, ("b",)),
        "neither": ((), ()),
        "at_once": ((), ()),
    }


def test_a_need_that_rules_removed_is_an_error_unless_it_is_optional():
    text = "a: {stage: build, script: x, rules: [{if: $NO}]}\nb: {script: x, needs: [%s]}"
    assert errors(text % "a") == (
        f"'b' job needs 'a' job, but 'a' does not exist in the pipeline. {NOT_THERE}",
    )
    assert job(text % "{job: a, optional: true}").needs == ()
    assert job(text % "{job: gone, optional: true}").needs == ()


def test_needs_of_rules_are_checked_like_others():
    text = "a: {script: x, rules: [{needs: [b]}]}\nb: {script: x, stage: %s, rules: [{needs: [a]}]}"
    assert errors(text % "test") in (
        ("The pipeline has circular dependencies: a -> b -> a",),
        ("The pipeline has circular dependencies: b -> a -> b",),
    )
    assert errors(text % "deploy") == ("a job: need b is not defined in current or prior stages",)
    assert errors("a: {script: x, rules: [{needs: [gone]}]}") == (
        f"'a' job needs 'gone' job, but 'gone' does not exist in the pipeline. {NOT_THERE}",
    )


rules = st.sampled_from(
    ["", ", rules: [{if: $A}]", ", rules: [{when: manual}]", ", when: always", ", only: [tags]"]
)
needs = st.lists(
    st.sampled_from(["{job: j0, optional: true}", "{job: j1, optional: true}", "j2"]), max_size=2
)


@given(
    st.lists(st.tuples(st.sampled_from(["build", "test", "deploy"]), rules, needs), min_size=1, max_size=5),
    st.booleans(),
)
def test_in_any_plan_needs_are_present_and_come_no_later_and_the_plan_survives_storage(drawn, has_a):
    text = "\n".join(
        f"j{n}: {{script: x, stage: {stage}{rule}, needs: [{', '.join(dict.fromkeys(needed))}]}}"
        for n, (stage, rule, needed) in enumerate(drawn)
    )
    given_variables = {"A": "1"} if has_a else {}
    if errors(text, given=given_variables):
        return
    found = jobs(text, given=given_variables)
    for one in found.values():
        for need in one.needs:
            assert found[need.job].stage_index <= one.stage_index
        assert from_json(to_json(one)) == one
