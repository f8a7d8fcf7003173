"""What `spec:inputs` declares, and the values that inputs get.

The tables are GitLab's tests, with its results and errors.
"""

import time

import pytest

from api_server.ci.config.errors import Budget, CiConfigError
from api_server.ci.config.inputs import declared, resolve
from api_server.ci.config.yaml_text import Reference
from tests.support.deviations import Deviations

#: Declaration, given values, and the values or the one sentence that GitLab has for them.
VALUES = [
    ({"foo": None}, {"foo": "bar"}, {"foo": "bar"}),
    ({"foo": {}}, {"foo": ""}, {"foo": ""}),
    ({"foo": {"default": "bar"}}, {}, {"foo": "bar"}),
    ({"foo": {"default": "bar"}}, {"foo": None}, {"foo": "bar"}),
    ({"foo": {"default": "bar"}, "baz": None}, {"baz": "test"}, {"foo": "bar", "baz": "test"}),
    ({"foo": {"type": "number"}}, {"foo": 6.5}, {"foo": 6.5}),
    ({"foo": {"type": "number", "default": 9}}, {}, {"foo": 9}),
    ({"foo": {"type": "boolean"}}, {"foo": False}, {"foo": False}),
    ({"foo": {"type": "array", "default": []}}, {}, {"foo": []}),
    # as later versions: text is read as JSON where it has to be, and made of what is none
    ({"foo": {"type": "number"}}, {"foo": "8"}, {"foo": 8}),
    ({"foo": {"type": "boolean"}}, {"foo": "true"}, {"foo": True}),
    ({"foo": {"type": "array"}}, {"foo": '["a", {"b": 1}]'}, {"foo": ["a", {"b": 1}]}),
    ({"foo": None}, {"foo": 3.10}, {"foo": "3.1"}),
    ({"foo": {"default": None}}, {}, {"foo": ""}),
    ({"foo": {"options": ["1", 2], "default": 2}}, {}, {"foo": "2"}),
    ({"foo": {"type": "array", "options": ["a", "b"]}}, {"foo": ["b"]}, {"foo": ["b"]}),
    ({"foo": {"regex": "^input_value$"}}, {"foo": "input_value"}, {"foo": "input_value"}),
    ({"foo": None}, {}, "`foo` input: required value has not been provided"),
    ({"foo": None}, {"foo": ["gitlab.com"]}, "`foo` input: provided value is not a string"),
    ({"foo": {"type": "number"}}, {"foo": "9" * 23}, "`foo` input: provided value is not a number"),
    ({"foo": None}, {"foo": Reference((".a", "b"))}, "`foo` input: provided value is not a string"),
    ({"foo": None}, {"foo": "bar", "test": "bar"}, "unknown input arguments: test"),
    (
        {"foo": None},
        {"test": "bar", "gitlab": "1"},
        "unknown input arguments: test, gitlab, `foo` input: required value has not been provided",
    ),
    ({"foo": {"default": []}}, {"foo": "a"}, "`foo` input: default value is not a string"),
    ({"foo": {"type": "number"}}, {"foo": False}, "`foo` input: provided value is not a number"),
    ({"foo": {"type": "number"}}, {"foo": "NaN"}, "`foo` input: provided value is not a number"),
    ({"foo": {"type": "number", "default": None}}, {}, "`foo` input: default value is not a number"),
    ({"foo": {"type": "boolean"}}, {"foo": 1}, "`foo` input: provided value is not a boolean"),
    ({"foo": {"type": "boolean", "default": "no"}}, {}, "`foo` input: default value is not a boolean"),
    ({"foo": {"type": "array"}}, {"foo": "string"}, "`foo` input: provided value is not an array"),
    ({"foo": {"type": "array", "default": "x"}}, {}, "`foo` input: default value is not an array"),
    (
        {"foo": {"default": "one", "options": ["one", "two"]}},
        {"foo": "niet"},
        "`foo` input: `niet` cannot be used because it is not in the list of allowed options",
    ),
    (
        {"foo": {"default": "coop", "options": ["one", "two"]}},
        {},
        "`foo` input: `coop` cannot be used because it is not in the list of allowed options",
    ),
    (
        {"foo": {"type": "number", "default": 1, "options": [1, 2]}},
        {"foo": "word"},
        "`foo` input: provided value is not a number, "
        "`foo` input: `word` cannot be used because it is not in the list of the allowed options",
    ),
    (
        {"foo": {"type": "boolean", "default": True, "options": [True]}},
        {},
        "`foo` input: Options can only be used with string and number inputs",
    ),
    (
        {"foo": {"regex": "^input_value$", "type": "number"}},
        {"foo": 999},
        "`foo` input: RegEx validation can only be used with string inputs",
    ),
    (
        {"foo": {"regex": "^input_value$"}},
        {"foo": "input"},
        "`foo` input: provided value does not match required RegEx pattern",
    ),
    (
        {"foo": {"regex": "^input_value$", "default": "input"}},
        {},
        "`foo` input: default value does not match required RegEx pattern",
    ),
    ({"foo": {"regex": "a++"}}, {"foo": "aaaa"}, "`foo` input: invalid regular expression"),
    (
        {"a": {"type": "boolean"}, "b": None, "c": {"type": "number"}, "d": {"type": "array"}},
        {"a": "no", "c": "yes", "d": 8},
        "`a` input: provided value is not a boolean, `b` input: required value has not been provided, "
        "`c` input: provided value is not a number",
    ),
]


def test_values_are_checked_as_gitlab_does_it():
    wrong = Deviations()
    for spec, values, expected in VALUES:
        try:
            found = resolve(declared({"spec": {"inputs": spec}}), values, Budget())
        except CiConfigError as error:
            (found,) = error.errors
        with wrong.of(f"{spec} {values}"):
            assert found == expected
    assert not wrong, wrong.report


#: A header, and what GitLab says of it.
HEADERS = [
    ({"spec": {}, "foo": 1}, "header config contains unknown keys: foo"),
    ({"spec": 1}, "header:spec config should be a hash"),
    ({"spec": {"arguments": {}}}, "header:spec config contains unknown keys: arguments"),
    ({"spec": {"inputs": []}}, "header:spec:inputs config should be a hash"),
    ({"spec": {"inputs": {"foo": 123}}}, "header:spec:inputs:foo config should be a hash"),
    (
        {"spec": {"inputs": {"foo": {"test": 1}}}},
        "header:spec:inputs:foo config contains unknown keys: test",
    ),
    (
        {"spec": {"inputs": {"foo": {"type": "datetime"}}}},
        "header:spec:inputs:foo input type unknown value: datetime",
    ),
    (
        {"spec": {"inputs": {"foo": {"options": "a"}}}},
        "header:spec:inputs:foo input options should be an array",
    ),
    ({"spec": {"inputs": {"foo": {"regex": 1}}}}, "header:spec:inputs:foo input regex should be a string"),
    (
        {"spec": {"inputs": {"foo": {"description": []}}}},
        "header:spec:inputs:foo input description must be an alphanumeric string",
    ),
    (
        {"spec": {"inputs": {"foo": {"options": list(range(51))}}}},
        "header:spec:inputs:foo config cannot define more than 50 options",
    ),
    (
        {"spec": {"inputs": {"foo": {"options": [None]}}}},
        "header:spec:inputs:foo config options array cannot contain null values",
    ),
    (
        {"spec": {"inputs": {"foo": {"rules": [{"options": ["a"]}], "options": ["a"]}}}},
        "header:spec:inputs:foo config these keys cannot be used together: rules, options",
    ),
    (
        {"spec": {"inputs": {"foo": {"rules": [{"options": ["a"]}], "default": "a"}}}},
        "header:spec:inputs:foo config these keys cannot be used together: rules, default",
    ),
    ({"spec": {"inputs": {"foo": {"rules": "a"}}}}, "header:spec:inputs:foo:rules config should be an array"),
    (
        {"spec": {"inputs": {"foo": {"rules": ["a"]}}}},
        "header:spec:inputs:foo:rules:rule config should be a hash",
    ),
    (
        {"spec": {"inputs": {"foo": {"rules": [{}]}}}},
        "header:spec:inputs:foo:rules:rule config can't be blank",
    ),
    (
        {"spec": {"inputs": {"foo": {"rules": [{"if": "true", "x": 1}]}}}},
        "header:spec:inputs:foo:rules:rule config contains unknown keys: x",
    ),
    (
        {"spec": {"inputs": {"foo": {"rules": [{"if": "true"}]}}}},
        "header:spec:inputs:foo:rules:rule config rule with 'if' must define 'options' or 'default'",
    ),
    (
        {"spec": {"inputs": {"foo": {"rules": [{"default": "a"}]}}}},
        "header:spec:inputs:foo:rules:rule config fallback rule must define 'options'",
    ),
    (
        {"spec": {"inputs": {"foo": {"rules": [{"if": "$A == 1", "default": "a"}]}}}},
        "header:spec:inputs:foo:rules:rule if invalid expression syntax",
    ),
    (
        {"spec": {"inputs": {"foo": {"rules": [{"if": 1, "default": "a"}]}}}},
        "header:spec:inputs:foo:rules:rule if invalid expression syntax",
    ),
    (
        {"spec": {"inputs": {"foo": {"rules": [{"if": "$[[ inputs.bar ]] == 'a'", "default": "a"}]}}}},
        "header:spec:inputs:foo config rule[0] references undefined inputs: bar",
    ),
    (
        {"spec": {"inputs": {"foo": {"rules": [{"if": "$[[ inputs.foo ]] == 'a'", "default": "a"}]}}}},
        "header:spec:inputs:foo config circular dependency detected",
    ),
]


def test_headers_are_checked_as_gitlab_does_it():
    wrong = Deviations()
    for header, expected in HEADERS:
        with wrong.of(str(header)), pytest.raises(CiConfigError) as error:
            declared(header)
        with wrong.of(str(header)):
            assert error.value.errors == (expected,)
    assert not wrong, wrong.report


def test_many_inputs_that_ask_about_each_other_cost_time_in_proportion():
    def asks(number):
        return {"rules": [{"if": f"$[[ inputs.i{number - 1} ]] == 'x'", "options": ["x"], "default": "x"}]}

    spec = {"i0": {"default": "x"}} | {f"i{number}": asks(number) for number in range(1, 8000)}
    began = time.process_time()
    assert set(resolve(declared({"spec": {"inputs": spec}}), {}, Budget()).values()) == {"x"}
    assert time.process_time() - began < 5
