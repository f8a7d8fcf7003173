"""The CI language: allowed content, also in lists, its limits, and GitLab's errors."""

import time

import pytest
from attrs import evolve

from api_server.ci.config import pipeline
from api_server.ci.config.configuration import read
from api_server.ci.config.context import Repository
from api_server.ci.config.errors import CiConfigError
from api_server.ci.config.pipeline import MAX_JOBS_BYTES, plan_pipeline
from tests.support.tables import tables_of

from .planning import context, errors, job, jobs, only, plan

TABLES = tables_of(__file__)

SCRIPT = "script: make"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *TABLES["every_refusal_names_the_job_and_the_key"],
        ("x" * 300 + ": {script: x}", "name should be between 1 and 255 characters long"),
    ],
)
def test_every_refusal_names_the_job_and_the_key(text, expected):
    assert expected in "\n".join(errors(text))


def test_all_wrong_keywords_are_reported_at_once():
    assert len(errors("a: {script: x, foo: 1}\nb: {script: 1}\nc: {script: x, when: x, tags: y}")) == 4


def test_extends_merges_hashes_all_the_way_and_replaces_lists():
    found = job(
        """
        .a: {variables: {X: a, Y: a}, tags: [a], image: {name: a, entrypoint: [sh]}}
        .b: {variables: {Y: b}, extends: .a, before_script: [b]}
        .c: {variables: {Z: c}, tags: [c]}
        test: {extends: [.b, .c], variables: {W: t}, image: {name: t}, script: x}
        """
    )
    assert {one.key: one.value for one in found.variables} == {"X": "a", "Y": "b", "Z": "c", "W": "t"}
    assert (found.tags, found.before_script) == (("c",), ("b",))
    assert (found.image.name, found.image.entrypoint) == ("t", ("sh",))


def test_extends_may_be_ten_levels_deep_but_not_more():
    def chain(levels):
        bases = "".join(f".l{n}: {{extends: .l{n + 1}}}\n" for n in range(levels))
        return bases + f".l{levels}: {{script: x}}\ntest: {{extends: .l0}}"

    assert errors(chain(9)) == ()
    assert "nesting too deep in `extends`" in errors(chain(12))[0]


def test_references_reach_into_any_key_and_are_flattened_into_scripts():
    found = job(
        """
        .setup: {script: [a, b], variables: {URL: u}}
        .more: {script: [!reference [.setup, script], c]}
        test: {variables: {U: !reference [.setup, variables, URL]}, script: [!reference [.more, script], d]}
        """
    )
    assert found.script == ("a", "b", "c", "d")
    assert found.variables[0].value == "u"


def test_a_bomb_of_references_is_refused():
    lines = [".r0: {script: [x, x, x, x, x, x, x, x, x, x]}"]
    lines += [
        f".r{n}: {{script: [{', '.join([f'!reference [.r{n - 1}, script]'] * 10)}]}}" for n in range(1, 9)
    ]
    assert errors("\n".join(lines) + "\ntest: {script: x}") == ("The parsed YAML is too big",)


def test_defaults_reach_jobs_that_do_not_set_the_keyword_or_keep_it_out():
    found = jobs(
        """
        default: {image: d, tags: [d], before_script: [d], interruptible: true, retry: 1}
        after_script: [top]
        a: {script: x}
        b: {script: x, image: b, before_script: []}
        c: {script: x, inherit: {default: false}}
        d: {script: x, inherit: {default: [image]}}
        e: {trigger: a/b}
        """
    )
    assert [
        (one.image and one.image.name, one.tags, one.before_script, one.after_script)
        for one in found.values()
    ] == [
        ("d", ("d",), ("d",), ("top",)),
        ("b", ("d",), (), ("top",)),
        (None, (), (), ()),
        ("d", (), (), ()),
        (None, (), (), ()),
    ]
    assert found["e"].interruptible is True


def test_the_merged_configuration_is_plain_and_free_of_what_was_carried_out():
    text = ".a: &a {tags: [x]}\ntest: {<<: *a, extends: .a, script: [!reference [.a, tags]]}"
    assert read(text, context()).merged == {
        ".a": {"tags": ["x"]},
        "test": {"tags": ["x"], "script": [["x"]]},
    }


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
        *TABLES["what_lists_are_of_and_how_many"],
        (
            f"rules: [{{changes: [{'x, ' * 51}]}}]",
            ":rules:rule:changes config has too many entries (maximum 50)",
        ),
        (f"tags: [{'x, ' * 50}]", ":tags config must be less than the limit of 50 tags"),
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
    wanted = evolve(context(), repository=mine, project=lambda *_: only(theirs))
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
        wanted = evolve(context(), project=lambda *_: only(Repository(read=files.get, paths=files.keys)))
        try:
            return tuple(one.name for one in plan_pipeline(text, wanted).jobs)
        except CiConfigError as refused:
            return refused.errors

    assert planned(10) == ("a",)
    assert planned(12) == ("Wildcards and `exists` are for the files of up to 10 other projects",)


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
        for _ in range(3):  # the garbage collector runs in some of them
            began = time.thread_time()
            errors(text)
            tries.append(time.thread_time() - began)
        return min(tries)

    assert seconds(16_000) < 10 * seconds(4_000)


def test_no_more_is_said_than_somebody_reads():
    said = CiConfigError(*(f"{number} {'x' * 20_000}" for number in range(2_000))).errors
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


def test_a_job_that_two_pipelines_of_a_change_would_have_is_a_warning():
    text = "{a: {script: x, rules: [{if: $A}, {when: always}]}, b: {script: x, rules: [{when: never}]}%s}"
    (warning,) = read(text % "", context()).warnings
    assert warning.startswith("jobs:a may allow multiple pipelines to run for a single action")
    assert read(text % ", workflow: {rules: [{if: $A}]}", context()).warnings == ()
    assert read(text % ", c: {script: x, rules: [{if: $A, when: always}]}", context()).warnings == (warning,)
