"""What a rule file and a job's variables say of how a job is played."""

from pathlib import Path

import pytest

from common.mistakes import Mistake
from forgelet.runner.rules import Played, played, read_rules

RULES = """
# the first that fits counts
- project: shop/*
  name: "deploy*"
  ref: main
  result: runner_system_failure
  duration: 90
- stage: test
  result: failed
  exit_code: 3
  log: |
    2 tests failed
  artifacts:
    report.xml: <testsuite/>
- duration: 0.5
"""
JOB = {"CI_PROJECT_PATH": "shop/web/app", "CI_JOB_NAME": "deploy 1/2", "CI_JOB_STAGE": "test"}


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"CI_COMMIT_REF_NAME": "main"}, Played(result="runner_system_failure", duration=90.0)),
        (
            {"CI_COMMIT_REF_NAME": "other"},
            Played(
                result="failed", exit_code=3, log="2 tests failed\n", artifacts={"report.xml": "<testsuite/>"}
            ),
        ),
        ({"CI_JOB_STAGE": "build"}, Played(duration=0.5)),
        (
            {"CI_JOB_STAGE": "build", "FORGELET_DURATION": "2", "FORGELET_LOG": "x"},
            Played(duration=2.0, log="x"),
        ),
        (
            {"CI_COMMIT_REF_NAME": "main", "FORGELET_RESULT": "success"},
            Played(result="success", duration=90.0),
        ),
        (
            {"CI_JOB_STAGE": "x", "FORGELET_ARTIFACTS": '{"a/b": "c"}', "FORGELET_EXIT_CODE": "7"},
            Played(duration=0.5, artifacts={"a/b": "c"}, exit_code=7),
        ),
    ],
)
def test_the_first_rule_that_fits_counts_and_variables_before_it(
    tmp_path: Path, variables: dict[str, str], expected: Played
) -> None:
    file = tmp_path / "rules.yml"
    file.write_text(RULES)
    job = JOB | variables
    assert played(job, read_rules(file).values_for(job)) == expected


def test_what_comes_of_a_result() -> None:
    assert (Played().failure_reason, Played().script_exit_code) == (None, None)
    failed = Played(result="failed")
    assert (failed.failure_reason, failed.script_exit_code) == ("script_failure", 1)
    lost = Played(result="stuck_or_timeout_failure", exit_code=3)
    assert (lost.failure_reason, lost.script_exit_code) == ("stuck_or_timeout_failure", None)


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("name: x", 1, "the rules have to be a list, each beginning with '- '"),
        ("- name: x\n- just text", 2, "a rule has to be keys and values, such as 'name: deploy'"),
        ("- name: x\n  reslut: failed", 2, "a rule has no 'reslut'; did you mean result?"),
        (
            "- name: x\n  colour: red",
            2,
            "a rule has no 'colour'; did you mean project, name, stage, ref, result",
        ),
        (
            "- name: x\n  result: broken",
            2,
            "result has to be success, failed or a reason to fail: api_failure",
        ),
        ("\n- name: x\n\n  duration: long", 4, "duration has to be a number of seconds from 0 to 604800"),
        ("- exit_code: 256", 1, "exit_code has to be a whole number from 0 to 255"),
        ("- ref: 1.10", 1, "ref has to be a text, in which * stands for anything; put it in quotes"),
        ("- log: [a]", 1, "log has to be a text"),
        ("- artifacts:\n    ../x: y", 2, "artifacts: '../x' is no path of a file in the job's folder"),
        ("- name: x\n  name: y", 2, "name is there twice"),
        ("- name: {", 1, "this is not valid YAML"),
        (
            "- name: !!python/object:os.system x",
            1,
            "this is not valid YAML: could not determine a constructor",
        ),
        ("- name: \0", 0, "this is not valid YAML"),
    ],
)
def test_a_wrong_rule_is_told_in_a_sentence_with_its_line(
    tmp_path: Path, text: str, line: int, words: str
) -> None:
    file = tmp_path / "rules.yml"
    file.write_text(text)
    with pytest.raises(Mistake) as problem:
        read_rules(file)
    where = f"{file}:{line}: " if line else f"{file}: "
    assert problem.value.message.startswith(where + words)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(
        Mistake, match=r"The rules of the runner cannot be read: No such file or directory: .*/none"
    ):
        read_rules(tmp_path / "none")
    (tmp_path / "empty.yml").write_text("# nothing yet\n")
    assert read_rules(tmp_path / "empty.yml").rules == ()
    (tmp_path / "binary").write_bytes(b"\xff\xfe\0")
    with pytest.raises(Mistake, match="are not UTF-8"):
        read_rules(tmp_path / "binary")


@pytest.mark.parametrize(
    ("variable", "text", "words"),
    [
        ("FORGELET_RESULT", "maybe", "FORGELET_RESULT has to be success, failed or a reason to fail"),
        ("FORGELET_EXIT_CODE", "-1", "FORGELET_EXIT_CODE has to be a whole number from 0 to 255"),
        ("FORGELET_DURATION", "soon", "FORGELET_DURATION has to be a number of seconds"),
        ("FORGELET_DURATION", "nan", "FORGELET_DURATION has to be a number of seconds"),
        ("FORGELET_ARTIFACTS", "[", "FORGELET_ARTIFACTS is not valid JSON"),
        ("FORGELET_ARTIFACTS", '{"a": 1}', "FORGELET_ARTIFACTS has to be texts by their paths"),
    ],
)
def test_a_wrong_variable_is_told(variable: str, text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        played({variable: text}, {})
