"""The condition language of `rules:if`, and the predefined variables."""

import re
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api_server.ci.config import predefined
from api_server.ci.config.predefined import job_variables, pipeline_variables
from api_server.ci.config.rules import _parse_cached, parse_condition
from api_server.ci.runners import job_response
from tests.support.tables import tables_of

from .planning import FULL, job, jobs

TABLES = tables_of(__file__)

KNOWN = {
    "A": "x",
    "EMPTY": "",
    "BLANK": " \t",
    "REF": "feature/v1",
    "PATTERN": "/^Feature/i",
    "PART": "feature",
    "UNFIT": "/(/",
    "PART2": "(",
    "ALL": "//",
    "LINES": "some\n/^FEATURE/i\ntext",
}


@pytest.mark.parametrize(
    ("text", "expected"),
    TABLES["expressions_mean_what_gitlab_says"],
)
def test_expressions_mean_what_gitlab_says(text, expected):
    assert parse_condition(text)(KNOWN) is expected


def test_of_what_may_stand_on_both_sides_of_a_match():
    texts = ("1234", "23", "/23/")
    matching = [(left, right) for left in texts for right in texts
                if parse_condition("$LEFT =~ $RIGHT")({"LEFT": left, "RIGHT": right})]  # fmt: skip
    assert matching == [
        ("1234", "1234"),
        ("1234", "/23/"),
        ("23", "1234"),
        ("23", "23"),
        ("23", "/23/"),
        ("/23/", "/23/"),
    ]


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "$",
        "$A ==",
        "== $A",
        "$A = 'x'",
        "$A == x",
        "$A && ",
        "($A",
        "$A)",
        "()",
        '"open',
        "/x/ =~ $A",
        "$A =~ /(/",
        "$A =~ /(?<=x)y/",
        "$A $B",
        "(/x/)",
        "(" * 60 + "$A" + ")" * 60,
        "$A == '" + "x" * 20000 + "'",
    ],
)
def test_what_is_no_expression_is_a_value_error(text):
    with pytest.raises(ValueError, match="inv"):
        parse_condition(text)


operands = st.sampled_from(["$A", "$B", "$C", "null", '"x"', "'y'", '""'])
comparisons = st.builds("{} {} {}".format, operands, st.sampled_from(["==", "!="]), operands)
matches = st.builds(
    "{} {} {}".format,
    operands,
    st.sampled_from(["=~", "!~"]),
    st.sampled_from(["/x/", "/^$/"]),
)
expressions = st.recursive(
    operands | comparisons | matches,
    lambda inner: (
        st.builds("{} {} {}".format, inner, st.sampled_from(["&&", "||"]), inner)
        | inner.map(lambda text: f"({text})")
    ),
    max_leaves=8,
)


class Text(str):
    """A text that counts as true even if it is empty, as in Ruby."""

    def __bool__(self):
        return True


def naive(text: str, known: dict[str, str | None]) -> bool:
    """Return the value of the expression as Python computes it: `and` and `or` have the same precedence there."""
    text = re.sub(r"(\"\w*\"|'\w*')", r"Text(\1)", text)
    text = re.sub(r"(\S+) =~ /(\S+)/", r"(re.search('\2', \1 or '') is not None)", text)
    text = re.sub(r"(\S+) !~ /(\S+)/", r"(re.search('\2', \1 or '') is None)", text)
    # Parentheses before an operand of a match are inside the call now.
    text = text.replace("null", "None").replace("$A", "A").replace("$B", "B").replace("$C", "C")
    texts = {key: value if value is None else Text(value) for key, value in known.items()}
    value = eval(text.replace("&&", "and").replace("||", "or"), {"re": re, "Text": Text}, texts)
    return value not in (None, False, "")


values = st.sampled_from([None, "", "x", "y", "xy"])


@given(expressions, values, values, values)
def test_any_expression_agrees_with_a_naive_evaluator(text, a, b, c):
    spaced = text.replace("(", "( ").replace(")", " )")
    known = {key: value for key, value in {"A": a, "B": b, "C": c}.items() if value is not None}
    assert parse_condition(spaced)(known) == naive(spaced, {"A": a, "B": b, "C": c})


@given(st.text(max_size=60) | st.text(alphabet="$AB='\"/()&|!~ ", max_size=40))
def test_any_text_parses_or_is_a_value_error(text):
    try:
        condition = parse_condition(text)
    except ValueError:
        return
    assert condition({"A": "/a/"}) in {True, False}


def test_a_long_row_of_operators_is_no_deep_one():
    for operator in ("==", "!=", "=~", "!~", "&&", "||"):
        assert parse_condition(f"$A {operator} " * 1200 + "$A")(KNOWN) in {True, False}


def test_what_is_kept_is_bounded_by_its_bytes(monkeypatch):
    cache = _parse_cached.cache
    cache.clear()
    monkeypatch.setattr(cache, "_Cache__maxsize", 2_000_000)
    for number in range(9):
        assert parse_condition(f"$N{number}" + " || $A" * 600)(KNOWN)
    assert 0 < cache.currsize <= 2_000_000
    assert len(cache) < 9
    cache.clear()


NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
SERVER = predefined.Server(url="https://git.example.org:8443", version="1.2.3-dev")
PROJECT = predefined.Project(
    id=7, full_path="group/sub/app", title="App", namespace_id=3, visibility="private", default_branch="main"
)
COMMIT = predefined.Commit(
    sha="a" * 40,
    message="Pay $5\n\nFor $CI_JOB_TOKEN",
    author="Alice",
    author_email="alice@example.org",
    timestamp=NOW,
)
PIPELINE = predefined.Pipeline(iid=5, ref="feature/One", source="push", created_at=NOW, protected=True)
ALICE = predefined.User(id=1, username="alice", name="Alice", email="alice@example.org")


def as_dict(variables):
    return {one.key: one.value for one in variables}


def test_a_branch_pipelines_variables():
    found = as_dict(pipeline_variables(SERVER, PROJECT, PIPELINE, COMMIT, ALICE))
    expected = {
        "CI": "true",
        "GITLAB_CI": "true",
        "CI_SERVER_URL": "https://git.example.org:8443",
        "CI_SERVER_HOST": "git.example.org",
        "CI_SERVER_PORT": "8443",
        "CI_SERVER_PROTOCOL": "https",
        "CI_SERVER_VERSION_MAJOR": "1",
        "CI_SERVER_VERSION_PATCH": "3",
        "CI_API_V4_URL": "https://git.example.org:8443/api/v4",
        "CI_PROJECT_ID": "7",
        "CI_PROJECT_NAME": "app",
        "CI_PROJECT_PATH": "group/sub/app",
        "CI_PROJECT_PATH_SLUG": "group-sub-app",
        "CI_PROJECT_NAMESPACE": "group/sub",
        "CI_PROJECT_ROOT_NAMESPACE": "group",
        "CI_PROJECT_URL": "https://git.example.org:8443/group/sub/app",
        "CI_DEFAULT_BRANCH": "main",
        "CI_CONFIG_PATH": ".gitlab-ci.yml",
        "CI_PIPELINE_IID": "5",
        "CI_PIPELINE_SOURCE": "push",
        "CI_PIPELINE_CREATED_AT": "2026-01-02T03:04:05Z",
        "CI_COMMIT_SHORT_SHA": "aaaaaaaa",
        "CI_COMMIT_BEFORE_SHA": "0" * 40,
        "CI_COMMIT_REF_NAME": "feature/One",
        "CI_COMMIT_REF_SLUG": "feature-one",
        "CI_COMMIT_REF_PROTECTED": "true",
        "CI_COMMIT_BRANCH": "feature/One",
        "CI_COMMIT_TITLE": "Pay $5",
        "CI_COMMIT_DESCRIPTION": "For $CI_JOB_TOKEN",
        "CI_COMMIT_AUTHOR": "Alice <alice@example.org>",
        "GITLAB_USER_LOGIN": "alice",
    }
    assert {key: found.get(key) for key in expected} == expected
    assert not [
        key for key in found if key.startswith(("CI_REGISTRY", "CI_DEPENDENCY_PROXY", "CI_COMMIT_TAG"))
    ]


def test_a_tag_has_a_tag_and_no_branch_and_a_merge_request_has_neither():
    tag = predefined.Pipeline(iid=1, ref="v1", source="push", created_at=NOW, tag=True, tag_message="One")
    found = as_dict(pipeline_variables(SERVER, PROJECT, tag, COMMIT))
    assert (found["CI_COMMIT_TAG"], found["CI_COMMIT_TAG_MESSAGE"]) == ("v1", "One")
    assert "CI_COMMIT_BRANCH" not in found
    request = predefined.MergeRequest(
        id=9,
        iid=2,
        title="T",
        source_branch="topic",
        source_sha="b" * 40,
        source_project_id=7,
        source_project_path="group/sub/app",
        target_branch="main",
    )
    found = as_dict(pipeline_variables(SERVER, PROJECT, PIPELINE, COMMIT, ALICE, request))
    assert "CI_COMMIT_BRANCH" not in found
    assert (found["CI_MERGE_REQUEST_IID"], found["CI_MERGE_REQUEST_TARGET_BRANCH_NAME"]) == ("2", "main")


HANDED_OUT = predefined.Job(id=11, pipeline_id=10, token="fljob-x", started_at=NOW, timeout=60)


def test_a_jobs_variables_and_its_secrets():
    planned = job(FULL)
    known = pipeline_variables(SERVER, PROJECT, PIPELINE, COMMIT, ALICE)
    found = job_variables(SERVER, PROJECT, HANDED_OUT, planned, known)
    expected = {
        "CI_PIPELINE_ID": "10",
        "CI_PIPELINE_URL": "https://git.example.org:8443/group/sub/app/-/pipelines/10",
        "CI_JOB_ID": "11",
        "CI_JOB_URL": "https://git.example.org:8443/group/sub/app/-/jobs/11",
        "CI_JOB_NAME": "build",
        "CI_JOB_STAGE": "test",
        "CI_JOB_TIMEOUT": "60",
        "CI_JOB_IMAGE": "python:3.11",
        "CI_NODE_TOTAL": "1",
        "CI_ENVIRONMENT_NAME": "staging",
        "CI_ENVIRONMENT_SLUG": "staging",
        "CI_ENVIRONMENT_TIER": "staging",
        "CI_ENVIRONMENT_URL": "https://staging.example.org/file",
        "CI_JOB_TOKEN": "fljob-x",
        "CI_REPOSITORY_URL": "https://gitlab-ci-token:fljob-x@git.example.org:8443/group/sub/app.git",
    }
    assert {key: as_dict(found).get(key) for key in expected} == expected
    assert [one.key for one in found if not one.public] == ["CI_JOB_TOKEN", "CI_REPOSITORY_URL"]
    assert [one.key for one in found if one.masked] == ["CI_JOB_TOKEN"]


def test_a_commit_message_cannot_pull_secrets_into_other_variables():
    planned = job("a: {script: x, variables: {NOTE: 'note: $CI_COMMIT_DESCRIPTION'}}")
    known = pipeline_variables(SERVER, PROJECT, PIPELINE, COMMIT, ALICE)
    found = job_response.variable_shapes(
        planned, predefined=[*known, *job_variables(SERVER, PROJECT, HANDED_OUT, planned, known)]
    )
    texts = {one["key"]: one for one in found}
    assert texts["CI_COMMIT_DESCRIPTION"]["value"] == "For $CI_JOB_TOKEN"
    assert texts["CI_COMMIT_DESCRIPTION"]["raw"] is True
    assert "fljob-x" not in texts["NOTE"]["value"]


def test_parallel_jobs_know_their_number():
    second = jobs("a: {script: x, parallel: 2}")["a 2/2"]
    found = as_dict(job_variables(SERVER, PROJECT, HANDED_OUT, second, ()))
    assert (found["CI_NODE_INDEX"], found["CI_NODE_TOTAL"]) == ("2", "2")


@pytest.mark.parametrize(("url", "port"), [("http://localhost", "80"), ("https://example.org/git", "443")])
def test_the_port_of_a_server_is_its_schemes_when_it_has_none(url, port):
    server = predefined.Server(url=url, version="1.0")
    assert as_dict(pipeline_variables(server, PROJECT, PIPELINE, COMMIT))["CI_SERVER_PORT"] == port
