"""Declarations of `spec:inputs`, and the values of inputs.

The tables are those of GitLab's tests, with their results and errors.
"""

import time

import pytest

from api_server.ci.config.errors import Budget, CiConfigError
from api_server.ci.config.inputs import declared, resolve
from api_server.ci.config.yaml_text import Reference
from tests.support.deviations import Deviations
from tests.support.tables import tables_of

TABLES = tables_of(__file__)

#: Declaration, given values, and the resulting values or GitLab's error.
VALUES = [
    *TABLES["values"],
    ({"foo": {"type": "number"}}, {"foo": "9" * 23}, "`foo` input: provided value is not a number"),
    ({"foo": {"type": "array"}}, {"foo": f"[1, {2**70}]"}, {"foo": [1, str(2**70)]}),
    (
        {"foo": {"type": "array"}},
        {"foo": "[" * 1000 + "]" * 1000},
        "`foo` input: provided value is not an array",
    ),
    ({"foo": None}, {"foo": Reference((".a", "b"))}, "`foo` input: provided value is not a string"),
    (
        {"foo": {"type": "number", "default": 1, "options": [1, 2]}},
        {"foo": "word"},
        "`foo` input: provided value is not a number, "
        "`foo` input: `word` cannot be used because it is not in the list of the allowed options",
    ),
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


#: A header, and GitLab's error.
HEADERS = [
    *TABLES["headers"],
    (
        {"spec": {"inputs": {"foo": {"options": list(range(51))}}}},
        "header:spec:inputs:foo config cannot define more than 50 options",
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
