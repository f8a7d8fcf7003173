"""How planned jobs multiply (`parallel`) and wait for each other (`needs`)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api_server.ci.config.plan import from_json, to_json
from api_server.ci.config.variables import Variable

from .planning import errors, job, jobs


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
    assert errors(text % "'$[[ matrix.A ]]'") == (
        "jobs:b:needs:parallel $[[ ]] is not supported by this service",
    )


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
    # the later one's rules decide, and the earlier one is nowhere
    gone = jobs(several + single % ", rules: [{if: $NONE}]" + "n: {script: x, needs: [t]}")
    assert list(gone) == [other, "n"]
    assert errors(several + single % ", rules: [{if: $NONE}]" + f"n: {{script: x, needs: ['{name}']}}") == (
        f"'n' job needs '{name}' job, but '{name}' does not exist in the pipeline",
    )


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
    assert errors(text % "a") == ("'b' job needs 'a' job, but 'a' does not exist in the pipeline",)
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
        "'a' job needs 'gone' job, but 'gone' does not exist in the pipeline",
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
