"""The keywords of CI files, and configurations of real projects."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api_server.ci.config import checks, predefined
from api_server.ci.config.plan import AutoCancel, Environment, IdToken, Retry
from api_server.ci.config.variables import (
    MAX_EXPANDED,
    Variable,
    expand,
    expand_all,
    overlay,
    values,
)

from .planning import MERGE_REQUEST, TAG, errors, job, jobs, plan, text_of

STOP = "stop: {script: x, when: manual, environment: {name: %s}}"


@pytest.mark.parametrize(
    ("text", "refused"),
    [
        ("test: {script: x, identity: google_cloud}", "jobs:test:identity"),
        ("test: {script: x, secrets: {}}", "jobs:test:secrets"),
        ("test: {run: [{name: a, script: x}]}", "jobs:test:run"),
        ("default: {identity: google_cloud}\ntest: {script: x}", "default:identity"),
        ("test: {script: x, artifacts: {reports: {sarif: x}}}", "jobs:test:artifacts:reports:sarif"),
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
        ("{max: 1, exit_codes: [-1, 3221225477]}", "script_failure", 3_221_225_477, True),
        ("{max: 1, exit_codes: [137]}", "runner_system_failure", None, False),
        ("{max: 1, exit_codes: [137], when: runner_system_failure}", "runner_system_failure", None, True),
        ("{max: 1, when: runner_system_failure}", "script_failure", 1, False),
    ],
)
def test_retries_look_at_reasons_and_at_exit_codes(retry, failure, exit_code, wanted):
    found: Retry = job(f"a: {{script: x, retry: {retry}}}").retry
    assert found.wants(failure, exit_code) is wanted


def test_a_rule_that_says_whether_the_job_may_fail_replaces_the_exit_codes():
    text = (
        "a: {script: x, allow_failure: {exit_codes: 464}, rules: [{if: $A, allow_failure: false}, {if: $B}]}"
    )
    assert job(text, given={"A": "1"}).allow_failure_exit_codes == ()
    assert job(text, given={"B": "1"}).allow_failure_exit_codes == (464,)


def test_unknown_names_in_tags_are_left_as_they_are():
    assert job("a: {script: x, tags: [$A-$B]}", given={"A": "1"}).tags == ("1-$B",)


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
    empty = jobs("{a: {script: x}, b: {script: x, stage: deploy, needs: [[null], a, null]}}")["b"]
    assert [need.job for need in empty.needs] == ["a"]


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


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("42", 42),
        ("1:30", 90),
        ("1:30:00", 5400),
        ("2: 0:0:0.5", 172_800),
        ("30 mins", 1800),
        ("1 day 2h", 93_600),
        ("2h20min", 8400),
        ("1 week", 604_800),
        ("1 week and 2 days", 777_600),
        ("3 hrs, 5 sec", 10_805),
        ("1.5 hours", 5400),
        ("6 mos 1 day", 6 * 2_592_000 + 86_400),
        ("1 YEAR", 31_557_600),
        ("day", 86_400),
        ("two hours", 7200),
        ("twenty min plus thirty-five s", 1235),
        ("ninety nine days with 1 h", 8_557_200),
        ("never", 0),
    ],
)
def test_durations_are_read_as_people_write_them(text, seconds):
    assert checks.parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text",
    [
        "",
        "soon",
        "1 fortnight",
        "-1 day",
        "an hour",
        "1 day x",
        "twoday",
        "1e9 days",
        "9999999999",
    ],
)
def test_other_texts_are_no_durations(text):
    with pytest.raises(ValueError, match="should be a duration"):
        checks.parse_duration(text)


@given(st.integers(0, 10**9))
def test_a_spelled_duration_reads_back_as_the_same_seconds(seconds):
    assert checks.parse_duration(checks.spell_duration(seconds)) == seconds


@given(st.text(max_size=30))
def test_any_text_is_a_duration_or_a_value_error(text):
    with contextlib.suppress(ValueError):
        assert checks.parse_duration(text) >= 0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("$A-${B}", "1-2"),
        ("$$A", "$A"),
        ("$MISSING.", "."),
        ("a$", "a$"),
        ("${A", "${A"),
        ("$A_", ""),
        ("%A%", "%A%"),
    ],
)
def test_expansion_replaces_known_names_once(text, expected):
    assert expand(text, {"A": "1", "B": "2"}) == expected


def expanded(**given_values):
    return values(expand_all(Variable(*one) for one in given_values.items()))


def test_variables_are_expanded_in_each_other_whatever_their_order():
    assert expanded(A="$B/a", B="${C}/b", C="c") == {"A": "c/b/a", "B": "c/b", "C": "c"}


def test_unknown_names_and_escapes_are_left_to_the_runner():
    assert expanded(A="$CI_PROJECT_DIR $$B", B="b") == {"A": "$CI_PROJECT_DIR $$B", "B": "b"}


def test_variables_in_a_circle_stay_as_they_were_written():
    assert expanded(A="$B", B="$A", C="$C", D="$A!") == {"A": "$B", "B": "$A", "C": "$C", "D": "$A!"}


def test_raw_variables_are_neither_expanded_nor_expanded_into_others():
    given_values = [Variable("A", "1"), Variable("R", "$A", raw=True), Variable("F", "path", file=True)]
    assert values(expand_all([*given_values, Variable("X", "$A $R $F")])) == {
        "A": "1",
        "R": "$A",
        "F": "path",
        "X": "1 $R $F",
    }


def test_expansion_never_grows_beyond_its_bound():
    bomb = {f"V{n}": f"$V{n + 1}" * 10 for n in range(30)} | {"V30": "x" * 10}
    assert sum(map(len, expanded(**bomb).values())) < 2 * MAX_EXPANDED
    assert len(expand("$A" * 10_000, {"A": "x" * 10_000})) == 20_000


@given(st.lists(st.tuples(st.sampled_from("ABC"), st.text(alphabet="$ABC{}x", max_size=12)), max_size=5))
def test_expanding_any_variables_ends_and_keeps_their_keys(pairs):
    found = expand_all(overlay(Variable(*pair) for pair in pairs))
    assert [variable.key for variable in found] == list(dict.fromkeys(key for key, _ in pairs))


def test_the_stronger_layer_wins_and_keeps_the_place_of_the_weaker():
    merged = overlay([Variable("A", "1"), Variable("B", "2")], [Variable("A", "3")])
    assert merged == [Variable("A", "3"), Variable("B", "2")]


@pytest.mark.parametrize(
    ("name", "expected"),
    [("Feature/Some_Thing", "feature-some-thing"), ("-x-", "x"), ("a" * 70, "a" * 63), ("1.0", "1-0")],
)
def test_slugs_of_refs(name, expected):
    assert predefined.slug(name) == expected


@given(st.text(min_size=1, max_size=60))
def test_environment_slugs_fit_a_host_name(name):
    slug = predefined.environment_slug(name)
    assert 0 < len(slug) <= 24
    assert slug[0].isalpha()
    assert slug[-1] != "-"
    assert set(slug) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")


def test_environment_slugs_keep_plain_names_and_tell_others_apart():
    assert predefined.environment_slug("production") == "production"
    assert predefined.environment_slug("review/a") != predefined.environment_slug("review-a")


@pytest.mark.parametrize(
    ("name", "tier"),
    [("production", "production"), ("live", "production"), ("staging/eu", "staging"), ("pre-prod", "staging"),
     ("qa", "testing"), ("review/topic", "development"), ("blue", "other")],
)  # fmt: skip
def test_the_tier_of_an_environment_is_guessed_from_its_name(name, tier):
    assert predefined.tier(name) == tier


PYTHON = text_of("python-project")


def test_a_python_package():
    on_main = plan(PYTHON, files={"requirements.txt": "aiohttp"})
    assert [one.name for one in on_main.jobs] == ["ruff", "pytest: [3.11]", "pytest: [3.12]"]
    assert on_main.jobs[0].cache[0].key != "default"
    assert [one.name for one in plan(PYTHON, predefined=TAG).jobs][-1] == "publish"
    assert len(plan(PYTHON, predefined=MERGE_REQUEST).jobs) == 3
    assert plan(PYTHON, predefined={"CI_COMMIT_BRANCH": "topic", "CI_DEFAULT_BRANCH": "main"}).jobs == ()


CONTAINERS = text_of("containers-project")
TEMPLATES = """
variables:
  IMAGE: "registry.example.org/$CI_PROJECT_PATH:$CI_COMMIT_SHORT_SHA"
.login:
  script: [docker login]
.container:
  stage: build
  image: docker:27
  services: [docker:27-dind]
.on-default-branch:
  rules: [{if: $CI_COMMIT_BRANCH == $CI_DEFAULT_BRANCH}]
"""


def test_containers_with_templates_deployments_and_other_pipelines():
    found = jobs(CONTAINERS, files={"ci/templates.yml": TEMPLATES}, changed=["docs/deep/index.md"])
    assert list(found) == [
        "build",
        "smoke",
        "docs",
        "staging",
        "production",
        "rollout",
        "downstream",
    ]
    assert found["build"].script[:2] == ("docker login", 'docker build -t "$IMAGE" .\ndocker push "$IMAGE"\n')
    assert [need.job for need in found["smoke"].needs] == ["build"]
    assert (found["production"].when, found["production"].allow_failure) == ("manual", False)
    assert (found["rollout"].when, found["rollout"].start_in) == ("delayed", 1800)
    assert found["staging"].script == ("docker login", 'kubectl set image deployment/app app="$IMAGE"')
    assert (found["docs"].kind, found["docs"].trigger.include) == ("bridge", ("docs/.gitlab-ci.yml",))
    assert found["downstream"].trigger.depend is True


def test_a_branch_without_the_image_still_runs_what_needs_it_optionally():
    topic = {"CI_COMMIT_BRANCH": "topic", "CI_COMMIT_REF_NAME": "topic", "CI_DEFAULT_BRANCH": "main"}
    found = jobs(CONTAINERS, predefined=topic, files={"ci/templates.yml": TEMPLATES}, changed=[])
    assert list(found) == ["smoke", "staging", "rollout", "downstream"]
    assert found["smoke"].needs == ()


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("[a]", "jobs:test:id_tokens config should be a hash"),
        ("{T: }", "jobs:test:id_tokens:T config should be a hash"),
        ("{T: x}", "jobs:test:id_tokens:T config should be a hash"),
        ("{T: {}}", "jobs:test:id_tokens:T config missing required keys: aud"),
        ("{T: {aud: x, sub: y}}", "jobs:test:id_tokens:T config contains unknown keys: sub"),
        ("{T: {aud: 1}}", "jobs:test:id_tokens:T aud should be an array of strings or a string"),
        ("{T: {aud: {a: b}}}", "jobs:test:id_tokens:T aud should be an array of strings or a string"),
        ("{T: {aud: [a, 1]}}", "jobs:test:id_tokens:T aud should be an array of strings"),
        (
            f"{{T: {{aud: [{', '.join('a' * 21)}]}}}}",
            "jobs:test:id_tokens:T aud has too many entries (maximum 20)",
        ),
        (
            f"{{{', '.join(f'T{number}: {{aud: a}}' for number in range(21))}}}",
            "jobs:test:id_tokens config has too many entries (maximum 20)",
        ),
    ],
)
def test_what_is_wrong_with_them_is_said_in_gitlabs_words(text: str, error: str) -> None:
    assert errors(f"test: {{script: x, id_tokens: {text}}}") == (error,)


def test_an_audience_is_a_text_or_a_list() -> None:
    found = job(
        "test: {script: x, id_tokens: {A: {aud: '$X'}, B: {aud: [a, b]}, C: {aud: [a]}, D: {aud: []}}}"
    )
    assert found.id_tokens == {
        "A": IdToken(aud=("$X",)),
        "B": IdToken(aud=("a", "b"), listed=True),
        "C": IdToken(aud=("a",), listed=True),
        "D": IdToken(aud=(), listed=True),
    }


def test_jobs_have_those_of_default_unless_they_have_their_own() -> None:
    found = jobs("""
        default: {id_tokens: {A: {aud: a}}}
        inheriting: {script: x}
        own: {script: x, id_tokens: {B: {aud: b}}}
        none: {script: x, inherit: {default: false}}
        some: {script: x, inherit: {default: [id_tokens]}}
        others: {script: x, inherit: {default: [image]}}
        extending: {extends: own, script: x, id_tokens: {C: {aud: c}}}
        """)
    assert {name: sorted(one.id_tokens) for name, one in found.items()} == {
        "inheriting": ["A"],
        "own": ["B"],
        "none": [],
        "some": ["A"],
        "others": [],
        "extending": ["B", "C"],
    }


def test_a_job_that_starts_a_pipeline_has_none() -> None:
    assert errors("test: {trigger: {project: a/b}, id_tokens: {A: {aud: a}}}") == (
        "jobs:test config contains unknown keys: id_tokens",
    )
    assert job("default: {id_tokens: {A: {aud: a}}}\ntest: {trigger: {project: a/b}}").id_tokens == {}
