"""`spec:inputs` and `$[[ ]]`: declarations of files, the values of inputs, and their effect on the content.

The examples are those of GitLab's documentation and tests, with GitLab's results and errors.
"""

import contextlib
import json
import shlex
import time

import pytest
from attrs import evolve
from hypothesis import example, given
from hypothesis import strategies as st

from api_server.ci.config.configuration import read
from api_server.ci.config.context import RemoteFile
from api_server.ci.config.errors import Budget, CiConfigError
from api_server.ci.config.interpolation import NOT_DECLARED, Interpolation, posix_escape
from api_server.ci.config.pipeline import child_configuration, plan_pipeline
from api_server.ci.config.variables import Variable
from api_server.ci.config.yaml_text import Reference, load, load_file
from tests.support.deviations import Deviations

from .planning import context, text_of


def merged(text, values=None, *, files=None, variables=()):
    """Return the content with its blocks replaced and with its includes, or the errors."""
    here = evolve(context(files=files), inputs=values or {}, overrides=tuple(variables))
    try:
        return read(text, here).merged
    except CiConfigError as error:
        return error.errors


SCAN = text_of("scan-website")


def test_the_example_of_gitlabs_documentation():
    text = """
include:
  - local: 'scan-website-job.yml'
    inputs:
      job-prefix: 'some-service-'
      environment: 'staging'
      concurrency: 2
      version: 'v1.3.2'
      export_results: false
"""
    assert merged(text, files={"scan-website-job.yml": SCAN}) == {
        "some-service--scan-website": {
            "stage": "test",
            "script": [
                'echo "scanning website -e staging -c 2 -v v1.3.2"',
                'if false; then echo "export results"; fi',
            ],
        }
    }


def test_a_block_that_is_a_whole_value_keeps_its_type():
    text = """
spec:
  inputs:
    array_input: {type: array}
    boolean_input: {type: boolean}
    number_input: {type: number}
    string_input: {type: string}
    port: {type: number, default: 8080}
    rules-config:
      type: array
      default:
        - if: $CI_PIPELINE_SOURCE == "merge_request_event"
          when: manual
        - if: $CI_PIPELINE_SOURCE == "push"
---
one: {script: x}
test_job:
  # $[[ inputs.nothing ]] in a comment is no block
  allow_failure: $[[ inputs.boolean_input ]]
  needs: $[[ inputs.array_input ]]
  parallel: $[[ inputs.number_input ]]
  rules: $[[ inputs.rules-config ]]
  script:
    - $[[ inputs.string_input ]]
    - $[[ inputs.array_input ]]
    - curl "https://gitlab.com:$[[ inputs.port ]]" $[[ inputs.boolean_input ]] $[[ inputs.array_input ]]
  variables:
    $[[ inputs.string_input ]]: "$[[inputs.string_input]]"
    N$[[ inputs.port ]]: $[[ inputs.port ]]
"""
    values = {"array_input": ["one"], "boolean_input": True, "number_input": 3, "string_input": "S"}
    assert merged(text, values) == {
        "one": {"script": "x"},
        "test_job": {
            "allow_failure": True,
            "needs": ["one"],
            "parallel": 3,
            "rules": [
                {"if": '$CI_PIPELINE_SOURCE == "merge_request_event"', "when": "manual"},
                {"if": '$CI_PIPELINE_SOURCE == "push"'},
            ],
            "script": ["S", "one", 'curl "https://gitlab.com:8080" true ["one"]'],
            "variables": {"S": "S", "N8080": 8080},
        },
    }


CLOUD = text_of("cloud")


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, "t3.micro publish "),
        ({"environment": "production", "instance_type": "m5.xlarge"}, "m5.xlarge publish "),
        ({"cloud_provider": "gcp", "publish": "false", "custom": "c"}, "e2-micro test c"),
        ({"cloud_provider": "azure", "environment": "production"}, "small publish "),
        ({"environment": "staging", "custom": ""}, "small publish "),
        ({"environment": "staging"}, ("`custom` input: required value has not been provided",)),
        (
            {"cloud_provider": "gcp", "instance_type": "t3.micro"},
            (
                "`instance_type` input: `t3.micro` cannot be used because it is not in the list of allowed options",
            ),
        ),
    ],
)
def test_rules_of_inputs(values, expected):
    found = merged(CLOUD, values)
    assert found == (expected if isinstance(expected, tuple) else {"job": {"script": expected}})


VARIABLES = {
    variable.key: variable
    for variable in (
        Variable("MY_VAR", "my value"),
        Variable("VAR1", "value1"),
        Variable("NESTED", "$VAR1"),
        Variable("MASKED_VAR", "s3cr3t-word", masked=True),
        Variable("FILE", "content", file=True),
        Variable("LONG", "x" * 600_000),
    )
}
GIVEN = {
    "data": "abcdef",
    "test": "test $MY_VAR",
    "digits": "0123456789",
    "n": 6,
    "f": 1.0,
    "no": None,
    "list": ["a", 1, {"b": None}],
    "deep": [["w", "xyz"]],
    "words": "A string with ' and \" and   blanks\n",
    "empty": "",
    "all": "${VAR1} $VAR1 %VAR1% $UNKNOWN $$VAR1 $NESTED $FILE",
    "masked": "$MASKED_VAR",
    "much": "$LONG$LONG",
    "block": "$[[ inputs.data ]]",
}
#: A text with blocks, and the resulting text or GitLab's error.
BLOCKS = [
    ("$[[ inputs.data ]]", "abcdef"),
    ("$[[inputs.data]]$[[\tinputs.n ]]", "abcdef6"),
    ("$[[ inputs.n ]]", 6),
    ("$[[ inputs.n ]] ", "6 "),
    ("<$[[ inputs.f ]]>", "<1.0>"),
    ("<$[[ inputs.no ]]>", "<>"),
    ("$[[ inputs.list ]]", ["a", 1, {"b": None}]),
    ("<$[[ inputs.list ]]>", '<["a", 1, {"b": null}]>'),
    # inserted text is not a block
    ("$[[ inputs.block ]] $[[ inputs.data ]]", "$[[ inputs.data ]] abcdef"),
    ("$[[ x", "$[[ x"),
    ("$[[ ]]", "$[[ ]]"),
    ("$[[a]]", "$[[a]]"),
    ("$[[ inputs.data\n]] ü $[[ inputs.\nn ]]", "abcdef ü $[[ inputs.\nn ]]"),
    # left for the expansion of matrices
    ("$[[ matrix.PROVIDER ]]", "$[[ matrix.PROVIDER ]]"),
    ("$[[ inputs.data | truncate(1,5) ]]", "bcdef"),
    ("$[[ inputs.data|truncate(1,5)  | truncate(2,2)  ]]", "de"),
    ("$[[ inputs.digits | truncate(3,5) ]]", "34567"),
    ("$[[ inputs.digits | truncate(99, 1) ]]", ""),
    ("$[[ inputs.digits | truncate( 8 , " + "9" * 900 + " ) ]]", "89"),
    ("$[[ inputs.test | expand_vars | truncate(5,8) ]]", "my value"),
    ("$[[ inputs.all | expand_vars ]]", "value1 value1 value1 $UNKNOWN $value1 $VAR1 content"),
    ("$[[ inputs.words | posix_escape ]]", "A\\ string\\ with\\ \\'\\ and\\ \\\"\\ and\\ \\ \\ blanks'\n'"),
    ("$[[ inputs.empty | posix_escape ]]", "''"),
    ("$[[ inputs.data | ]]", "abcdef"),
    ("$[[ abc[123] ]]", ("invalid interpolation access pattern",)),
    ("$[[ | truncate(1,2) ]]", ("invalid interpolation access pattern",)),
    ("$[[ inputs.nothing ]]", ("unknown interpolation key: `nothing`",)),
    ("$[[ xxx.yyy ]] $[[ inputs.zzz ]]", ("unknown interpolation key: `xxx`",)),
    ("$[[ inputs.data.more ]]", ("unknown interpolation key: `more`",)),
    ("$[[ inputs.list.0 ]]", ("unknown interpolation key: `0`",)),
    ("$[[ inputs.list[0] ]]", "a"),
    ("<$[[ inputs.list[1] ]]>", "<1>"),
    ("$[[ inputs.list[2].b ]]", None),
    ("$[[ inputs.deep[0][1] | truncate(0,1) ]]", "x"),
    ("$[[ inputs.list[3] ]]", ("array index 3 out of bounds (size: 3) in `inputs.list[3]`",)),
    ("$[[ inputs.data[0] ]]", ("cannot index into non-array value at [0] in `inputs.data[0]`",)),
    ("$[[ inputs.nothing[0] ]]", ("unknown interpolation key: `nothing`",)),
    ("$[[ inputs.list[-1] ]]", ("unknown interpolation key: `list[-1]`",)),
    ("$[[ inputs.list[0]a ]]", ("unknown interpolation key: `list[0]a`",)),
    ("$[[ inputs." + "d" * 1024 + " ]]", ("maximum interpolation expression size exceeded",)),
    (
        "$[[ inputs.data | undefined ]]",
        ("no function matching `undefined`: check that the function name, arguments, and types are correct",),
    ),
    (
        "$[[ inputs.data | truncate(1) ]]",
        (
            "no function matching `truncate(1)`: "
            "check that the function name, arguments, and types are correct",
        ),
    ),
    (
        "$[[ inputs.data | posix_escape | posix_escape | posix_escape | posix_escape ]]",
        ("too many functions in interpolation block",),
    ),
    (
        "$[[ inputs.n | truncate(1,2) ]]",
        ("error in `truncate` function: invalid input type: truncate can only be used with string inputs",),
    ),
    (
        "$[[ inputs.n | expand_vars ]]",
        (
            "error in `expand_vars` function: invalid input type: expand_vars can only be used with string inputs",
        ),
    ),
    (
        "$[[ inputs.list | posix_escape ]]",
        (
            "error in `posix_escape` function: invalid input type: posix_escape can only be used with string inputs",
        ),
    ),
    (
        "$[[ inputs.masked | expand_vars ]]",
        ("error in `expand_vars` function: variable expansion error: masked variables cannot be expanded",),
    ),
    (
        "$[[ inputs.much | expand_vars ]]",
        ("error in `expand_vars` function: variable expansion error: more than 1048576 characters",),
    ),
]


def interpolation(budget=None):
    return Interpolation({"inputs": GIVEN}, VARIABLES, budget or Budget())


def test_blocks_become_what_gitlab_makes_of_them():
    wrong = Deviations()
    for text, expected in BLOCKS:
        try:
            found = interpolation().replaced(text)
        except CiConfigError as error:
            found = error.errors
        with wrong.of(text[:100]):
            assert found == expected
    assert not wrong, wrong.report


def test_blocks_are_replaced_wherever_they_are_in_values():
    content = {
        "$[[ inputs.data ]]": {"x": [1, True, None, ["$[[ inputs.list ]]", "z"], "$[[ inputs.list ]]"]},
        "$[[ inputs.n ]]": Reference(("$[[ inputs.data ]]",)),
    }
    assert interpolation().replaced(content) == {
        "abcdef": {"x": [1, True, None, ["a", 1, {"b": None}, "z"], "a", 1, {"b": None}]},
        "6": Reference(("$[[ inputs.data ]]",)),
    }


# content that is never changed


@given(st.text() | st.text(alphabet="$[] x.|\n]", max_size=60))
def test_a_text_without_blocks_stays_as_it_is(text):
    outside = text.replace("]]", "")
    assert interpolation().replaced(outside) == outside


@given(st.lists(st.text(alphabet=st.characters(exclude_characters="$[]", exclude_categories=["Cs"]))))
def test_what_is_between_blocks_stays_as_it_is(texts):
    assert interpolation().replaced("!" + "$[[ inputs.data ]]".join(texts)) == "!" + "abcdef".join(texts)


@given(st.text(alphabet="$[]{}%MASKED_VAR inputs.maskedt|expand_vars()1,0", max_size=80))
def test_masked_values_never_appear(text):
    for content in (text, f"$[[ inputs.masked | {text} ]]", f"$[[ {text} | expand_vars ]]"):
        try:
            found = interpolation().replaced(content)
        except CiConfigError as error:
            found = error.errors
        assert "s3cr3t" not in str(found)


@given(st.text(alphabet=st.characters(exclude_characters="\0", exclude_categories=["Cs"])))
def test_an_escaped_text_is_one_word_of_a_shell(text):
    assert shlex.split(posix_escape(text)) == [text]


# limits


@pytest.mark.parametrize(
    "text",
    [
        "$[[" * 300_000,
        "$[[ a" * 200_000,
        "$[[ inputs.data ]]" * 50_000,
        "$[[ x\n" * 150_000,
        "]]$[[ ab" * 100_000,
    ],
)
def test_hostile_texts_cost_time_in_proportion_to_their_length(text):
    began = time.process_time()
    with contextlib.suppress(CiConfigError):
        interpolation().replaced(text)
    assert time.process_time() - began < 3


def refused(content, values=None, budget=None):
    work = interpolation(budget)
    if values is not None:
        work.values = {"inputs": values}
    with pytest.raises(CiConfigError) as error:
        work.replaced(content)
    return error.value.errors


def test_what_is_inserted_is_paid_for():
    too_big = ("The parsed YAML is too big",)
    too_long = ("The parsed YAML is too big: more than 33554432 characters",)
    assert refused(["$[[ inputs.a ]]"] * 1000, {"a": list(range(1000))}) == too_big
    assert refused(["-$[[ inputs.a ]]"] * 1000, {"a": "x" * 100_000}) == too_long
    assert refused("-$[[ inputs.a ]]" * 1000, {"a": "x" * 100_000}) == too_long
    many = [f"$[[ inputs.a | truncate({number},1) | posix_escape ]]" for number in range(1000)]
    assert refused(many, {"a": "x" * 100_000}) == too_long
    nested = {"a": []}
    for _ in range(120):
        nested["a"] = [nested["a"]]
    assert refused("$[[ inputs.a ]]", nested) == (
        "The parsed YAML is too big: nested deeper than 100 levels",
    )


def test_blocks_have_bounds_of_their_own():
    values = {f"i{number}": "" for number in range(10_001)}
    assert refused([f"$[[ inputs.{name} ]]" for name in values], values) == ("too many interpolation blocks",)
    assert refused("x" * 1024 * 1024 + "$[[ inputs.a ]]", values) == ("config node too large",)


# documents


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: {script: x}", (None, {"a": {"script": "x"}})),
        ("---\na: 1", (None, {"a": 1})),
        ("spec:\n---\na: 1", ({"spec": None}, {"a": 1})),
        ("---\n---\nspec: {}\n--- {a: 1}", ({"spec": {}}, {"a": 1})),
        ("a: 1\n---\nspec: {}", (None, {"a": 1})),
        # a header without content is not a header
        ("spec: {}\n---\n", (None, {"spec": {}})),
        ("spec: {}", (None, {"spec": {}})),
        ("spec: &x {inputs: {a: }}\n---\nb: 1\n---\nc: 1", ({"spec": {"inputs": {"a": None}}}, {"b": 1})),
    ],
)
def test_the_first_document_is_a_header_if_it_has_the_key_spec(text, expected):
    assert load_file(text, Budget()) == expected


def test_documents_after_the_content_are_not_read():
    said = []
    load_file("spec:\n---\na: 1\n---\nb: 1", Budget(), said.append)
    load_file("a: 1\n---\nb: 1", Budget(), said.append)
    assert said == [
        "Only the first document of a file is read after its header",
        "Only the first document of a file is read",
    ]
    assert load("spec: 1\n---\na: 1", Budget()) == {"a": 1}


@pytest.mark.parametrize(
    ("text", "values", "expected"),
    [
        ("a: {script: x}", {"b": 1}, (NOT_DECLARED,)),
        (
            "spec: {inputs: {a: }}\n---\na: {script: x}",
            {},
            ("`a` input: required value has not been provided",),
        ),
        ("spec: {inputs: {a: }}\n---\n[]", {}, ("Invalid configuration format",)),
        ("spec: {inputs: {a: }}", {}, ("jobs spec config should implement a script: or a trigger: keyword",)),
        ("a: {script: '$[[ inputs.a ]]'}", {}, {"a": {"script": "$[[ inputs.a ]]"}}),
        ("a: {script: x}", {str(n): n for n in range(21)}, ("A pipeline can take up to 20 inputs",)),
        ("a: {script: x}", {"a": ["\0"]}, ("Inputs cannot have a NUL character",)),
        (
            "spec: {inputs: {a: }}\n---\nj: {script: '$[[ inputs.a ]]'}",
            {"a": "\\u0000"},
            {"j": {"script": "\\u0000"}},
        ),
    ],
)
def test_the_file_itself_gets_the_inputs_of_the_pipeline(text, values, expected):
    assert merged(text, values) == expected


# includes


def test_each_include_has_inputs_of_its_own():
    files = {
        "job.yml": "spec: {inputs: {name: , list: {type: array, default: []}}}\n---\n"
        "$[[ inputs.name ]]: {script: '$[[ inputs.list ]]'}",
        "deep.yml": "spec: {inputs: {name: {default: outer}, files: {type: array}}}\n---\n"
        "include: [{local: job.yml, inputs: {name: 'in-$[[ inputs.name ]]', list: '$[[ inputs.files ]]'}}]",
    }
    text = """
include:
  - {local: job.yml, inputs: {name: one, list: [a]}}
  - {local: job.yml, inputs: {name: two, list: [b]}}
  - {local: deep.yml, inputs: {files: [c, d]}}
"""
    assert merged(text, files=files) == {
        "one": {"script": ["a"]},
        "two": {"script": ["b"]},
        "in-outer": {"script": ["c", "d"]},
    }


def test_a_file_may_include_itself_with_other_inputs():
    files = {
        "a.yml": "spec: {inputs: {n: {type: number}, left: {type: array, default: []}}}\n---\n"
        "include: $[[ inputs.left ]]\njob-$[[ inputs.n ]]: {script: x}"
    }
    inner = "{local: a.yml, inputs: {n: 2}}"
    text = f"include: {{local: a.yml, inputs: {{n: 1, left: [{inner}]}}}}"
    assert merged(text, files=files) == {"job-2": {"script": "x"}, "job-1": {"script": "x"}}
    files["a.yml"] = "spec: {inputs: {n: }}\n---\ninclude: {local: a.yml, inputs: {n: '$[[ inputs.n ]]'}}"
    assert merged("include: {local: a.yml, inputs: {n: 1}}", files=files) == (
        "Local file `a.yml` includes itself: a.yml -> a.yml -> a.yml",
    )


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ("{local: a.yml}", "`a.yml`: `a` input: required value has not been provided"),
        ("{local: a.yml, inputs: {a: []}}", "`a.yml`: `a` input: provided value is not a string"),
        ("{local: a.yml, inputs: {a: 1, b: 1}}", "`a.yml`: unknown input arguments: b"),
        ("{local: none.yml, inputs: {a: 1}}", f"`none.yml`: {NOT_DECLARED}"),
        ("{local: a.yml, inputs: []}", "include:inputs config should be a hash"),
        ("{local: bad.yml}", "`bad.yml`: unknown interpolation key: `nothing`"),
    ],
)
def test_errors_of_an_included_file_name_it(entry, expected):
    files = {
        "a.yml": "spec: {inputs: {a: }}\n---\na: {script: '$[[ inputs.a ]]'}",
        "none.yml": "a: {script: x}",
        "bad.yml": "spec: {inputs: {}}\n---\na: {script: '$[[ inputs.nothing ]]'}",
    }
    assert merged(f"include: {entry}", files=files) == (expected,)


def test_files_of_the_web_know_no_variables():
    content = b"spec: {inputs: {a: {default: $MINE}}}\n---\nj: {script: '$[[ inputs.a | expand_vars ]]'}"
    here = evolve(
        context(files={"a.yml": content.decode()}),
        overrides=(Variable("MINE", "value"),),
        remote={"https://e.org/a.yml": RemoteFile(content=content)},
    )
    assert read("include: https://e.org/a.yml", here).merged == {"j": {"script": "$MINE"}}
    assert read("include: a.yml", here).merged == {"j": {"script": "value"}}


# downstream


def test_a_trigger_passes_inputs_on():
    text = """
project: {trigger: {project: a/b, inputs: {name: $NAME, list: [1]}}}
child:
  trigger:
    include:
      - {local: $NAME.yml, inputs: {name: $NAME}}
      - {project: a/b, file: $NAME.yml, inputs: {n: 1}}
"""
    plan = plan_pipeline(text, context(given={"NAME": "n"}))
    project, child = (job.trigger for job in plan.jobs)
    assert (project.project, project.inputs) == ("a/b", {"name": "$NAME", "list": [1]})
    assert child.include == (
        {"local": "n.yml", "inputs": {"name": "$NAME"}},
        {"project": "a/b", "file": "n.yml", "inputs": {"n": 1}},
    )
    assert merged("a: {trigger: {include: a.yml, inputs: {a: 1}}}") == (
        "jobs:a trigger config contains unknown keys: inputs",
    )


@example(dict.fromkeys("\x7f\x85\u2028\u2029\ufeff\uffff\U0001f600", ""))
@example(
    dict.fromkeys(("\u2028", " \x85 ", ":name", "1,000", "1:30", "2024-01-31", "#", "n" * 1025), " \u2028 ")
)
@given(st.dictionaries(st.text(min_size=1), st.text() | st.integers(-(2**63) + 1, 2**63 - 1) | st.booleans()))
def test_inputs_of_a_child_pipeline_arrive_as_they_are(values):
    files = ({"local": "a.yml", "inputs": values},)
    text = child_configuration(files)
    if any("\0" in key or "\0" in str(value) for key, value in values.items()):
        with pytest.raises(CiConfigError):
            load(text, Budget())
    else:
        assert load(text, Budget()) == {"include": json.loads(json.dumps(files))}
