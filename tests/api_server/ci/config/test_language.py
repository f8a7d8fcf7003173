"""What a configuration may say, and how it is refused: GitLab's keywords and sentences."""

import pytest

from api_server.ci.config.configuration import read

from .planning import context, errors, job, jobs

SCRIPT = "script: make"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "Please provide content of .gitlab-ci.yml"),
        ("stages: [a]", "jobs config should contain at least one visible job"),
        ("invalid: yaml", "jobs invalid config should implement a script: or a trigger: keyword"),
        ("test: {script: x, something: wrong}", "jobs:test config contains unknown keys: something"),
        ("test: {script: x, a: 1, b: 2}", "jobs:test config contains unknown keys: a, b"),
        (
            "test: {script: x, release: {tag_name: v1}}",
            "jobs:test:release config missing required keys: description",
        ),
        ("test: {trigger: a/b, script: x}", "jobs:test config contains unknown keys: script"),
        ("test: {trigger: a/b, tags: [x]}", "jobs:test config contains unknown keys: tags"),
        ("default: {script: x}\ntest: {script: x}", "default config contains unknown keys: script"),
        (
            "workflow: {auto_cancel: {on_new_commit: all}}\ntest: {script: x}",
            "workflow:auto_cancel on new commit should be one of: conservative, interruptible, none",
        ),
        ("test: {script: x, artifacts: {expose_as: x}}", "jobs:test:artifacts paths can't be blank"),
        (
            "test: {script: x, artifacts: {reports: {load: x}}}",
            "jobs:test:artifacts:reports config contains unknown keys: load",
        ),
        (
            "test: {script: x, rules: [{if: $A, foo: 1}]}",
            "jobs:test:rules:rule config contains unknown keys: foo",
        ),
        (
            "test: {script: x, needs: [{pipeline: a/b}]}",
            "jobs:test:needs:pipeline is not supported by this service",
        ),
        (
            "test: {trigger: {include: [{artifact: a.yml, job: x}]}}",
            "jobs:test:trigger:include:artifact is not supported by this service",
        ),
        ("include: [{template: a.yml}]", "include:template is not supported by this service"),
        ("include: {component: a/b/c@1}", "include:component is not supported by this service"),
        ("include: {local: a.yml, inputs: {a: 1}}", "include:inputs is not supported by this service"),
        ("include: {local: a.yml, remote: b}", "include config is of one kind only: local, remote"),
        ("include: {project: a/b}", "include config missing required keys: file"),
        ("include: {remote: 'https://a.org/a.yml', integrity: x}", "include:integrity should start with"),
        (
            "test: {script: x, only: ['/(/']}",
            "jobs:test:only config should be an array of strings or regular",
        ),
        (
            "test: {script: [{echo: x}]}",
            "jobs:test:script config should be a string or a nested array of strings",
        ),
        ("test: {script: [true]}", "jobs:test:script config should be a string or a nested array of strings"),
        ("test: {script: []}", "jobs:test script can't be blank"),
        ("test: {script: x, stage: 1}", "jobs:test:stage config should be a string"),
        (
            "test: {script: x, stage: nope}",
            "test job: chosen stage nope does not exist; available stages are .pre,",
        ),
        (
            "test: {script: x, when: sometimes}",
            "jobs:test when should be one of: on_success, on_failure, always,",
        ),
        ("test: {script: x, when: never}", "jobs:test when should be one of: on_success, on_failure,"),
        ("test: {script: x, when: delayed}", "jobs:test start_in should be given with when: delayed"),
        ("test: {script: x, start_in: 1 day}", "jobs:test start_in should be given with when: delayed"),
        (
            "test: {script: x, when: delayed, start_in: 2 weeks}",
            "start in should not exceed the limit of 1 week",
        ),
        (
            "test: {script: x, artifacts: {paths: [a], expire_in: 9000 years}}",
            "expire in should not exceed the limit of 52000 weeks",
        ),
        (
            "test: {script: x, timeout: 100 years}",
            "timeout config should not exceed the limit of 4 weeks 2 days",
        ),
        ("test: {script: x, timeout: soon}", "jobs:test:timeout config should be a duration"),
        ("test: {script: x, timeout: never}", "jobs:test:timeout config should be a duration"),
        ("test: {script: x, retry: 3}", "jobs:test:retry config should be an integer between 0 and 2"),
        ("test: {script: x, retry: true}", "jobs:test:retry config should be an integer or a hash"),
        ("test: {script: x, retry: {max: 1, when: luck}}", "jobs:test:retry when should be one of: always"),
        ("test: {script: x, coverage: TOTAL}", "jobs:test:coverage config must be a regular expression"),
        ("test: {script: x, coverage: '/(/'}", "jobs:test:coverage config must be a regular expression"),
        ("test: {script: x, rules: [{if: '$A =='}]}", "jobs:test:rules:rule if invalid expression syntax"),
        (
            "test: {script: x, rules: [], only: [main]}",
            "jobs:test config key may not be used with `rules`: only",
        ),
        (
            "test: {script: x, only: {kubernetes: active}}",
            "jobs:test:only:kubernetes is not supported by this service",
        ),
        (
            "test: {script: x, variables: {A: [x]}}",
            "jobs:test:variables:A variable definition must be either a string or a hash",
        ),
        (
            "variables: {A: {value: x, options: [y]}}\ntest: {script: x}",
            "variables:A config value must be present in options",
        ),
        ("test: {script: x, image: {entrypoint: [a]}}", "jobs:test:image config missing required keys: name"),
        (
            "test: {script: x, cache: [{}, {}, {}, {}, {}]}",
            "jobs:test:cache config no more than 4 caches can be created",
        ),
        (
            "test: {script: x, parallel: 500}",
            "jobs:test:parallel config should be an integer between 1 and 200",
        ),
        (
            "test: {trigger: {branch: x}}",
            "jobs:test trigger config should contain either a project: or an include:",
        ),
        ("test: {trigger: a/b, when: delayed}", "jobs:test when should be one of"),
        (
            "image: a\ndefault: {image: b}\ntest: {script: x}",
            "image is defined in top-level and `default:` entry",
        ),
        ("x" * 300 + ": {script: x}", "name should be between 1 and 255 characters long"),
        # needs and dependencies
        ("test: {script: x, needs: [gone]}", "test job: undefined need: gone"),
        ("test: {script: x, dependencies: [gone]}", "test job: undefined dependency: gone"),
        (
            "a: {script: x, stage: build, needs: [b]}\nb: {script: x, stage: test}",
            "a job: need b is not defined in current or prior stages",
        ),
        (
            "a: {script: x, stage: build, dependencies: [b]}\nb: {script: x}",
            "a job: dependency b is not defined in current or prior stages",
        ),
        (
            "a: {script: x, stage: build}\nb: {script: x, needs: [c], dependencies: [a]}\nc: {script: x}",
            "jobs:b dependencies the a should be part of needs",
        ),
        ("a: {script: x}\nb: {script: x, needs: [a, a]}", "b has the following needs duplicated: a."),
        (
            "a: {script: x, needs: [b]}\nb: {script: x, needs: [c]}\nc: {script: x, needs: [a]}",
            "The pipeline has circular dependencies:",
        ),
        ("a: {script: x, needs: [a]}", "The pipeline has circular dependencies: a -> a"),
        # extends and references
        ("test: {extends: .gone, script: x}", "test: unknown keys in `extends` (.gone)"),
        (
            ".a: {extends: .b}\n.b: {extends: .a}\nt: {extends: .a, script: x}",
            "circular dependency detected in `extends`",
        ),
        ("stages: [a]\nt: {extends: stages, script: x}", "t: invalid base hash in `extends` (stages)"),
        ("t: {extends: 1, script: x}", "jobs:t:extends config should be an array of strings or a string"),
        ("t: {script: !reference [.gone, script]}", '!reference [".gone", "script"] could not be found'),
        (
            ".a: {script: !reference [.a, script]}\nt: {script: x}",
            '!reference [".a", "script"] is part of a circular',
        ),
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
