"""Lists in CI files: of what, how many, and where they may stand inside each other, in GitLab's words."""

import pytest

from .planning import errors, job, plan

NESTED_TEXTS = "an array of strings or a nested array of strings up to 10 levels deep"
NESTED_SCRIPT = "a string or a nested array of strings up to 10 levels deep"
RULES = "rules should be an array containing hashes and arrays of hashes"


def nested(levels: int, item: str) -> str:
    return "[" * levels + item + "]" * levels


@pytest.mark.parametrize(
    ("keyword", "item", "levels", "complaint"),
    [
        ("script", "x", 10, f":script config should be {NESTED_SCRIPT}"),
        ("before_script", "x", 10, f":before_script config should be {NESTED_SCRIPT}"),
        ("after_script", "x", 10, f":after_script config should be {NESTED_SCRIPT}"),
        ("rules", "{when: always}", 10, f" {RULES}"),
        ("needs", "b", 90, ""),
        ("services", "postgres", 90, ""),
        ("cache", "{paths: [x]}", 90, ""),
        ("tags", "x", 90, ""),
        ("dependencies", "b", 1, " dependencies should be an array of strings"),
        ("only", "main", 1, ":only config should be an array of strings or regular expressions"),
        ("except", "tags", 1, ":except config should be an array of strings or regular expressions"),
        ("extends", ".c", 1, ":extends config should be an array of strings or a string"),
        ("inherit", "image", 1, ""),
    ],
)
def test_where_lists_may_stand_inside_each_other(keyword, item, levels, complaint):
    wrapped = "{default: %s}" if keyword == "inherit" else "%s"
    text = "b: {script: x, stage: build}\n.c: {image: c}\na: {script: x, %s: %s}"
    assert errors(text % (keyword, wrapped % nested(levels, item))) == ()
    if complaint:
        (said,) = errors(text % (keyword, nested(levels + 1, item)))
        assert said.startswith(f"jobs:a{complaint}")


def test_stages_are_flattened_wherever_they_come_from():
    text = """
    .s: {stages: [test, [deploy]]}
    stages: [[build, [.pre]], !reference [.s, stages], last]
    a: {script: x, stage: last}
    """
    assert plan(text).stages == (".pre", "build", "test", "deploy", "last", ".post")
    assert errors(f"stages: {nested(10, 'test')}\na: {{script: x}}") == ()
    assert errors(f"stages: {nested(11, 'test')}\na: {{script: x}}") == (
        f"stages config should be {NESTED_TEXTS}",
    )


def test_what_stands_in_nested_lists_counts():
    found = job(
        """
        a:
          script: [[a, [b]], c]
          services: [[postgres, [{name: redis}]]]
          cache: [[{key: x}], {key: y}]
          tags: [linux, [big]]
        """
    )
    assert found.script == ("a", "b", "c")
    assert [one.name for one in found.services] == ["postgres", "redis"]
    assert [one.key for one in found.cache] == ["x", "y"]
    assert found.tags == ("linux", "big")


@pytest.mark.parametrize(
    ("job", "complaint"),
    [
        ("tags: [1]", ":tags config should be an array of strings"),
        ("tags: x", ":tags config should be an array"),
        ("artifacts: {paths: [[x]]}", ":artifacts paths should be an array of strings"),
        ("artifacts: {paths: [1, 2]}", ":artifacts paths should be an array of strings"),
        (
            "artifacts: {reports: {junit: [1]}}",
            ":artifacts:reports:junit config should be an array of strings",
        ),
        (
            "artifacts: {reports: {junit: 1}}",
            ":artifacts:reports:junit config should be an array of strings or a string",
        ),
        ("cache: x", ":cache config can only be a Hash or an Array"),
        ("cache: [x]", ":cache config should be an array of hashes"),
        ("cache: {key: {files: [a, b, c]}}", ":cache:key:files config has too many items (maximum is 2)"),
        ("services: [1]", ":services config should be an array of hashes or strings"),
        ("needs: 1", ":needs config can only be a Hash or an Array"),
        ("needs: [1]", ":needs config should be an array of hashes or strings"),
        ("rules: x", f" {RULES}"),
        ("rules: {if: $A}", f" {RULES}"),
        ("rules: [x]", f" {RULES}"),
        ("rules: [{changes: [1]}]", ":rules:rule:changes config should be an array of strings"),
        (
            f"rules: [{{changes: [{'x, ' * 51}]}}]",
            ":rules:rule:changes config has too many entries (maximum 50)",
        ),
        (
            "allow_failure: {exit_codes: x}",
            ":allow_failure:exit_codes config should be an array of integers or",
        ),
        (
            "allow_failure: {exit_codes: [x]}",
            ":allow_failure:exit_codes config should be an array of integers",
        ),
        ("parallel: {matrix: {A: b}}", ":parallel:matrix config should be an array of hashes"),
        ("parallel: {matrix: [x]}", ":parallel:matrix config should be an array of hashes"),
        ("parallel: {matrix: [{}]}", ":parallel:matrix:variables config requires at least 1 items"),
        *(
            (
                f"parallel: {{matrix: [{{A: {value}}}]}}",
                ":parallel:matrix:variables config should be a hash of key value pairs, value can be an array",
            )
            for value in ("[]", "''", "", "[[x]]", "1.5", "[3.10, 3.11]", "true", "{b: c}")
        ),
        (f"tags: [{'x, ' * 50}]", ":tags config must be less than the limit of 50 tags"),
        ("trigger: {include: [a, b, c, d]}", ":trigger:include config is too long (maximum is 3)"),
    ],
)
def test_what_lists_are_of_and_how_many(job, complaint):
    script = "" if job.startswith("trigger") else "script: x, "
    (said,) = errors(f"a: {{{script}{job}}}")
    assert said.startswith(f"jobs:a{complaint}")


def test_one_need_may_stand_without_a_list():
    assert [need.job for need in job("a: {script: x, needs: {job: b, optional: true}}").needs] == []


def test_includes_that_are_nothing_are_passed_over():
    assert errors("include: [null, a.yml]\na: {script: x}", files={"a.yml": ".b: {}"}) == ()
