"""What a small text may stand for: not more than a server can write down."""

import time

from attrs import evolve

from api_server.ci.config import pipeline
from api_server.ci.config.context import Repository
from api_server.ci.config.errors import ConfigError
from api_server.ci.config.pipeline import MAX_JOBS_BYTES, plan_pipeline

from .planning import context, errors, plan

_LONG = "x" * 100_000


def test_a_long_text_that_is_used_again_and_again_is_paid_for_each_time():
    aliases = ", ".join(["*long"] * 400)
    assert errors(f".long: &long {_LONG}\na: {{script: [{aliases}]}}") == (
        "The parsed YAML is too big: more than 33554432 characters",
    )
    references = ", ".join(["!reference [.long, script]"] * 400)
    assert errors(f".long: {{script: [{_LONG}]}}\na: {{script: [{references}]}}") == (
        "The parsed YAML is too big: more than 33554432 characters",
    )
    few = ", ".join(["*long"] * 50)
    assert len(plan(f".long: &long {_LONG}\na: {{script: [{few}]}}").jobs[0].script) == 50


def test_what_all_jobs_get_is_paid_for_by_each():
    too_many = (f"The jobs are more than {MAX_JOBS_BYTES} bytes in all",)
    default = f"default: {{before_script: [{_LONG}]}}\n"
    assert errors(default + "\n".join(f"j{n}: {{script: x}}" for n in range(400))) == too_many
    four = f"a: {{script: [{', '.join([_LONG] * 4)}], parallel: 100}}"
    assert errors(four) == too_many


def test_a_sentence_about_what_is_wrong_is_one_that_can_be_read():
    bad = ", ".join(["[]"] * 200)
    assert errors(f"a: {{script: x, parallel: {{matrix: [{{? {_LONG} : [{bad}]}}]}}}}") == (
        "jobs:a:parallel:matrix:variables config has a key of more than 255 characters",
    )
    assert errors(f"variables: {{? {_LONG} : x}}\na: {{script: x}}") == (
        "variables config has a key of more than 255 characters",
    )


def test_a_thousand_jobs_of_no_stage_do_not_tell_of_ten_thousand_stages_each():
    stages = ", ".join(f"stage{n}" for n in range(10_000))
    said = errors(f"stages: [{stages}]\na: {{script: x, stage: no one}}\nb: {{script: x, stage: no one}}")
    assert [len(one) < 1200 for one in said] == [True, True]
    assert said[0].startswith(
        "a job: chosen stage no one does not exist; available stages are .pre, stage0, stage1"
    )
    assert said[0].endswith(", ...")


def test_names_fit_where_names_are_kept():
    long = "y" * 250
    assert errors(f"a: {{script: x, parallel: {{matrix: [{{A: [{long}, b]}}]}}}}") == ()
    assert errors(f"test: {{script: x, parallel: {{matrix: [{{A: [{long}, b]}}]}}}}") == (
        "jobs:test:parallel config gives a job a name of more than 255 characters",
    )
    assert errors("a: {script: x, resource_group: $LONG}", given={"LONG": "r" * 256}) == (
        "a job: resource_group is too long (maximum is 255 characters)",
    )
    assert errors("a: {script: x, environment: e$LONG}", given={"LONG": "r" * 255}) == (
        "a job: environment name is too long (maximum is 255 characters)",
    )
    assert (
        errors("a: {script: x, environment: $LONG, resource_group: $LONG}", given={"LONG": "r" * 255}) == ()
    )


def test_the_paths_of_a_commit_are_asked_for_once_however_many_files_have_wildcards():
    files = {f"{n}.yml": f"include: '{n + 1}*.yml'" for n in range(1, 9)} | {"9.yml": "a: {script: x}"}
    asked = []

    def paths() -> list[str]:
        asked.append(1)
        return list(files)

    mine = Repository(read=files.get, paths=paths)
    wanted = evolve(context(), repository=mine, project=lambda *_: theirs)
    assert [one.name for one in plan_pipeline("include: '1*.yml'", wanted).jobs] == ["a"]
    assert len(asked) == 1
    theirs = evolve(mine)
    text = "include: [{project: group/lib, file: [1.yml, 5.yml]}, {project: group/lib, file: 3.yml}]"
    assert [one.name for one in plan_pipeline(text, wanted).jobs] == ["a"]
    assert len(asked) == 2


def test_paths_are_listed_for_a_few_other_projects_only():
    files = {"a.yml": "include: 'b*.yml'", "b.yml": "a: {script: x}"}

    def planned(projects: int) -> tuple[str, ...]:
        entries = ", ".join(f"{{project: g/p{n}, file: a.yml}}" for n in range(projects))
        text = f"include: [{entries}]"
        wanted = evolve(context(), project=lambda *_: Repository(read=files.get, paths=files.keys))
        try:
            return tuple(one.name for one in plan_pipeline(text, wanted).jobs)
        except ConfigError as refused:
            return refused.errors

    assert planned(10) == ("a",)
    assert planned(11) == ("Wildcards and `exists` are for the files of up to 10 other projects",)


def test_rows_that_a_job_needs_are_counted_before_anything_is_said_of_them():
    rows = ", ".join(f"r{n}" for n in range(30))
    need = f"{{job: gone, parallel: {{matrix: [{{A: [{rows}]}}]}}}}"
    assert len(errors(f"a: {{script: x, needs: [{need}]}}")) == 30
    assert errors(f"a: {{script: x, needs: [{need}, {need}]}}") == ("a job: one job can only need 50 others",)


def test_instances_of_parallel_jobs_are_counted_in_the_file():
    many = "\n".join(
        f"j{number}: {{script: x, parallel: 200, rules: [{{if: $NONE}}]}}" for number in range(260)
    )
    assert errors(many) == ("The number of jobs, with all that `parallel` makes, exceeds 50000",)


def test_jobs_of_many_stages_are_read_in_a_time_that_grows_as_the_file_does():
    def seconds(number: int) -> float:
        stages = ", ".join(f"s{count}" for count in range(number))
        jobs = "\n".join(f"j{count}: {{script: x, stage: s{number - 1}}}" for count in range(number // 6))
        text = f"stages: [{stages}]\n{jobs}"
        tries = []
        for _ in range(3):  # the garbage collector takes its time in some
            began = time.thread_time()
            errors(text)
            tries.append(time.thread_time() - began)
        return min(tries)

    assert seconds(16_000) < 10 * seconds(4_000)


def test_no_more_is_said_than_somebody_reads():
    said = ConfigError(*(f"{number} {'x' * 20_000}" for number in range(2_000))).errors
    assert len(said) == 100
    assert {len(sentence) for sentence in said} == {10_003}


def test_one_job_has_so_many_variables_services_and_bytes():
    variables = ", ".join(f"V{number}: x" for number in range(1001))
    assert errors(f"a: {{script: x, variables: {{{variables}}}}}") == (
        "a job: there are more than 1000 variables",
    )
    services = ", ".join(["postgres"] * 101)
    assert errors(f"a: {{script: x, services: [{services}]}}") == (
        "jobs:a:services config has too many entries (maximum 100)",
    )
    aliases = ", ".join(["*long"] * 90)
    assert errors(f".long: &long {_LONG}\na: {{script: [{aliases}]}}") == (
        "a job: it is more than 8388608 bytes",
    )


def test_planning_ends(monkeypatch):
    monkeypatch.setattr(pipeline, "MAX_SECONDS", -1.0)
    assert errors("a: {script: x}") == ("The jobs take more than -1 seconds to plan",)
