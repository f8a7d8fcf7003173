"""YAML as text becomes plain values, or one kind of error."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api_server.ci.config.configuration import read
from api_server.ci.config.errors import Budget, ConfigError
from api_server.ci.config.yaml_text import MAX_BYTES, load

from .planning import context


def loaded(text):
    return load(text, Budget())


def refusal(text):
    with pytest.raises(ConfigError) as caught:
        loaded(text)
    return caught.value.errors[0]


def test_versions_and_dates_stay_the_text_that_was_written():
    assert loaded("{a: 1.10, b: 2024-01-02, c: 010, d: 7, e: yes, f: null, 404: x, on: y}") == {
        "a": "1.10",
        "b": "2024-01-02",
        "c": 8,
        "d": 7,
        "e": True,
        "f": None,
        "404": "x",
        "on": "y",
    }


def test_anchors_and_merge_keys_work_and_an_anchor_may_be_given_again():
    text = "a: &x {k: 1, l: 1}\nb: {<<: *x, k: 2}\nc: &x {k: 3}\nd: {<<: [*x, {m: 4}]}"
    assert loaded(text) == {
        "a": {"k": 1, "l": 1},
        "b": {"k": 2, "l": 1},
        "c": {"k": 3},
        "d": {"k": 3, "m": 4},
    }


def test_of_a_key_given_twice_the_last_one_counts_and_its_author_is_told():
    warnings: list[str] = []
    text = "a: 1\nb: {x: 1, <<: {y: 1}, <<: {z: 1}, x: 2}\na: 3"
    assert load(text, Budget(), warnings.append) == {"a": 3, "b": {"y": 1, "z": 1, "x": 2}}
    assert warnings == [
        "The key x is given twice, again at line 2: the last one counts",
        "The key a is given twice, again at line 3: the last one counts",
    ]


def test_keys_may_be_written_as_symbols_which_ruby_takes_for_names():
    assert loaded(':job:\n  :script: :x\n":quoted": 1\n":": 2\na:b: 3') == {
        "job": {"script": ":x"},
        ":quoted": 1,
        ":": 2,
        "a:b": 3,
    }
    warnings: list[str] = []
    assert load("a: 1\n:a: 2", Budget(), warnings.append) == {"a": 2}
    assert warnings == ["The key a is given twice, again at line 2: the last one counts"]


@pytest.mark.parametrize("text", ["- a", "text", "", "7"])
def test_what_is_no_hash_is_refused_in_gitlabs_words(text):
    """Clients show them as they are."""
    assert refusal(text) == "Invalid configuration format"


def test_of_several_documents_the_first_one_counts():
    warnings: list[str] = []
    assert load("---\na: 1\n---\nb: 2\n", Budget(), warnings.append) == {"a": 1}
    assert warnings == ["Only the first document of a file is read"]
    assert load("---\na: 1\n...\n", Budget(), warnings.append) == {"a": 1}
    assert len(warnings) == 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: [", "Invalid configuration format"),
        ("[a]: 1", "A key should be text at line 1"),
        ("? [a]\n: 1", "A key should be text at line 1"),
        ("a: *b", "Invalid configuration format"),
        ("a: &x [*x]", "The YAML anchor x contains itself"),
        ("a: &x {b: {<<: *x}}", "The YAML anchor x contains itself"),
        ("a: !!python/object:os.system x", "Unknown tag in the YAML"),
        ("a: !!binary aGk=", "Unknown tag in the YAML"),
        ("a: !!timestamp 2024-01-01", "Unknown tag in the YAML"),
        ("a: !foo x", "Unknown tag in the YAML"),
        ("a: !!bool maybe", "does not fit its tag"),
        ("a: !!int many", "does not fit its tag"),
        ("a: !reference x", "!reference should be a list of keys"),
        ("a: !reference [[x]]", "!reference should be a list of keys"),
        ("a: \0", "Invalid configuration format"),
        ('a:\n  b: "x\\0y"', "A NUL character at line 2"),
        ('"a\\0": 1', "A NUL character at line 1"),
        ('a: !reference [b, "\\0"]', "A NUL character at line 1"),
        ("a: \ud800", "not valid UTF-8"),
        ("a: " + "[" * 150 + "]" * 150, "nested deeper than 100 levels"),
        ("a: " + "[" * 100_000, "nested deeper than 100 levels"),
        ("#" * (MAX_BYTES + 1), "too big"),
    ],
)
def test_what_is_refused_and_how(text, expected):
    assert expected in refusal(text)


def test_a_bomb_of_aliases_is_refused():
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    assert refusal("\n".join(lines)) == "The parsed YAML is too big"


def test_a_bomb_of_merge_keys_is_refused():
    lines = ["a0: &a0 {k: 1}"]
    lines += [f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 10)}], k{n}: 1}}" for n in range(1, 12)]
    assert refusal("\n".join(lines)) == "The parsed YAML is too big"


def test_aliases_below_the_bound_are_no_bomb():
    text = "a: &a {k: [1, 2, 3]}\n" + "\n".join(f"b{n}: *a" for n in range(1000))
    assert len(loaded(text)) == 1001


pieces = st.sampled_from(
    [
        "job:",
        "script:",
        "rules:",
        "include:",
        "stages:",
        "variables:",
        "default:",
        "extends:",
        "needs:",
        "trigger:",
        "cache:",
        "artifacts:",
        "image:",
        "services:",
        "parallel:",
        "matrix:",
        "only:",
        "workflow:",
        "environment:",
        "\n",
        "\n  ",
        "\n    ",
        " ",
        "- ",
        "job",
        "&a ",
        "*a",
        "!reference [job, script]",
        "{",
        "}",
        "[",
        "]",
        "<<: ",
        "if: $A",
        "when: manual",
        "local: a.yml",
        "1",
        "true",
        "null",
        "'x'",
        "name: x",
        "key:",
        "retry:",
        "timeout:",
    ]
)


@given(st.text(max_size=60) | st.lists(pieces, max_size=25).map("".join))
def test_any_text_is_a_configuration_or_a_config_error(text):
    with contextlib.suppress(ConfigError):
        assert read(text, context(files={"a.yml": text})).jobs
