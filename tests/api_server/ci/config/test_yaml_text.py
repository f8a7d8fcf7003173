"""How the text of a CI file is read, and `!reference` in it."""

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api_server.ci.config import yaml_text
from api_server.ci.config.configuration import read
from api_server.ci.config.errors import Budget, CiConfigError
from api_server.ci.config.yaml_text import MAX_BYTES, load
from tests.support.deviations import Deviations

from .planning import context


def loaded(text):
    return load(text, Budget())


def refusal(text):
    with pytest.raises(CiConfigError) as caught:
        loaded(text)
    return caught.value.errors[0]


def test_scalars_are_what_ruby_reads():
    """The table has the values that Psych 4.0 loads, with symbols and aliases allowed as in GitLab, and Ruby's
    spelling.

    Integers beyond 64 bits are text here. Entries with `refused` name a class that is not loaded. Texts that look
    like these are written in quotes.
    """
    found = Deviations()
    lines = (Path(__file__).parent / "psych_scalars.tsv").read_text().splitlines()[1:]
    for written, kind, spelled in (line.split("\t") for line in lines):
        with found.of(written):
            assert loaded(yaml_text.dump({written: written})) == {written: written}
            if kind == "refused":
                assert refusal(f"a: {written}").startswith(
                    f"Invalid configuration format: Tried to load unspecified class: {spelled} at line 1: "
                )
                continue
            value = loaded(f"a: {written}")["a"]
            assert (type(value).__name__, yaml_text.spell_scalar(value)) == (kind, spelled)
    assert not found, found.report


def test_an_author_is_told_of_numbers_that_are_not_what_she_wrote():
    warnings: list[str] = []
    load("a: 3.10\nb: [7, 1:30, '3.10', 0.5, 1.2.3]\n3.10: c\nd: 1_000", Budget(), warnings.append)
    assert warnings == [
        "3.10 at line 1 is read as the number 3.1: a text has to be in quotes",
        "1:30 at line 2 is read as the number 5400: a text has to be in quotes",
        "1_000 at line 4 is read as the number 1000: a text has to be in quotes",
    ]


def test_keys_are_text_as_it_is_written():
    text = "{1.10: a, 2024-01-02: b, 010: c, yes: d, null: e, 404: f, on: g, .5: h}"
    assert list(loaded(text)) == ["1.10", "2024-01-02", "010", "yes", "null", "404", "on", ".5"]


@given(st.text(alphabet="0123456789:._,+-eExb T~yn'Z", max_size=110))
def test_any_scalar_is_read_and_spelled_or_a_value_error(text):
    with contextlib.suppress(ValueError):
        assert isinstance(yaml_text.spell_scalar(yaml_text.read_scalar(text)), str)


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
    assert loaded(':job:\n  :script: :x\n:"q": 0\n":quoted": 1\n":": 2\na:b: 3') == {
        "job": {"script": "x"},
        "q": 0,
        ":quoted": 1,
        ":": 2,
        "a:b": 3,
    }
    warnings: list[str] = []
    assert load("a: 1\n:a: 2", Budget(), warnings.append) == {"a": 2}
    assert warnings == ["The key a is given twice, again at line 2: the last one counts"]


@pytest.mark.parametrize("text", ["- a", "text", "", "7"])
def test_what_is_no_hash_is_refused_in_gitlabs_words(text):
    """Clients show the messages unchanged."""
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
        ("a: !ruby/object:Object {}", "Unknown tag in the YAML"),
        ("a: !ruby/regexp /x/", "Unknown tag in the YAML"),
        ("a: !ruby/range 1..2", "Unknown tag in the YAML"),
        ("a: !!set {a}", "Unknown tag in the YAML"),
        ("a: 2024-01-02", "Tried to load unspecified class: Date at line 1: 2024-01-02 has to be in quotes"),
        ("a: !!float many", "does not fit its tag"),
        ("a: 0x_", "does not fit its tag"),
        ("a: !!binary /w==", "does not fit its tag"),
        ("a: !!binary AA==", "A NUL character at line 1"),
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
    with contextlib.suppress(CiConfigError):
        assert read(text, context(files={"a.yml": text})).jobs
