"""Durations, variables, names."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api_server.ci.config import checks, predefined
from api_server.ci.config.variables import (
    MAX_EXPANDED,
    Variable,
    expand,
    expand_all,
    overlay,
    values,
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("42", 42),
        ("1:30", 90),
        ("1:30:00", 5400),
        ("2: 0:0:0.5", 172_800),
        ("30 mins", 1800),
        ("1 day 2h", 93_600),
        ("2h20min", 8400),
        ("1 week", 604_800),
        ("1 week and 2 days", 777_600),
        ("3 hrs, 5 sec", 10_805),
        ("1.5 hours", 5400),
        ("6 mos 1 day", 6 * 2_592_000 + 86_400),
        ("1 YEAR", 31_557_600),
        ("never", 0),
    ],
)
def test_durations_are_read_as_people_write_them(text, seconds):
    assert checks.parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "soon", "1 fortnight", "-1 day", "day", "1 day x", "1e9 days", "9999999999"]
)
def test_other_texts_are_no_durations(text):
    with pytest.raises(ValueError, match="should be a duration"):
        checks.parse_duration(text)


@given(st.integers(0, 10**9))
def test_a_spelled_duration_reads_back_as_the_same_seconds(seconds):
    assert checks.parse_duration(checks.spell_duration(seconds)) == seconds


@given(st.text(max_size=30))
def test_any_text_is_a_duration_or_a_value_error(text):
    with contextlib.suppress(ValueError):
        assert checks.parse_duration(text) >= 0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("$A-${B}", "1-2"),
        ("$$A", "$A"),
        ("$MISSING.", "."),
        ("a$", "a$"),
        ("${A", "${A"),
        ("$A_", ""),
        ("%A%", "%A%"),
    ],
)
def test_expansion_replaces_known_names_once(text, expected):
    assert expand(text, {"A": "1", "B": "2"}) == expected


def expanded(**given_values):
    return values(expand_all(Variable(*one) for one in given_values.items()))


def test_variables_are_expanded_in_each_other_whatever_their_order():
    assert expanded(A="$B/a", B="${C}/b", C="c") == {"A": "c/b/a", "B": "c/b", "C": "c"}


def test_unknown_names_and_escapes_are_left_to_the_runner():
    assert expanded(A="$CI_PROJECT_DIR $$B", B="b") == {"A": "$CI_PROJECT_DIR $$B", "B": "b"}


def test_variables_in_a_circle_stay_as_they_were_written():
    assert expanded(A="$B", B="$A", C="$C", D="$A!") == {"A": "$B", "B": "$A", "C": "$C", "D": "$A!"}


def test_raw_variables_are_neither_expanded_nor_expanded_into_others():
    given_values = [Variable("A", "1"), Variable("R", "$A", raw=True), Variable("F", "path", file=True)]
    assert values(expand_all([*given_values, Variable("X", "$A $R $F")])) == {
        "A": "1",
        "R": "$A",
        "F": "path",
        "X": "1 $R $F",
    }


def test_expansion_never_grows_beyond_its_bound():
    bomb = {f"V{n}": f"$V{n + 1}" * 10 for n in range(30)} | {"V30": "x" * 10}
    assert sum(map(len, expanded(**bomb).values())) < 2 * MAX_EXPANDED
    assert len(expand("$A" * 10_000, {"A": "x" * 10_000})) == 20_000


@given(st.lists(st.tuples(st.sampled_from("ABC"), st.text(alphabet="$ABC{}x", max_size=12)), max_size=5))
def test_expanding_any_variables_ends_and_keeps_their_keys(pairs):
    found = expand_all(overlay(Variable(*pair) for pair in pairs))
    assert [variable.key for variable in found] == list(dict.fromkeys(key for key, _ in pairs))


def test_the_stronger_layer_wins_and_keeps_the_place_of_the_weaker():
    merged = overlay([Variable("A", "1"), Variable("B", "2")], [Variable("A", "3")])
    assert merged == [Variable("A", "3"), Variable("B", "2")]


@pytest.mark.parametrize(
    ("name", "expected"),
    [("Feature/Some_Thing", "feature-some-thing"), ("-x-", "x"), ("a" * 70, "a" * 63), ("1.0", "1-0")],
)
def test_slugs_of_refs(name, expected):
    assert predefined.slug(name) == expected


@given(st.text(min_size=1, max_size=60))
def test_environment_slugs_fit_a_host_name(name):
    slug = predefined.environment_slug(name)
    assert 0 < len(slug) <= 24
    assert slug[0].isalpha()
    assert slug[-1] != "-"
    assert set(slug) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")


def test_environment_slugs_keep_plain_names_and_tell_others_apart():
    assert predefined.environment_slug("production") == "production"
    assert predefined.environment_slug("review/a") != predefined.environment_slug("review-a")


@pytest.mark.parametrize(
    ("name", "tier"),
    [("production", "production"), ("live", "production"), ("staging/eu", "staging"), ("pre-prod", "staging"),
     ("qa", "testing"), ("review/topic", "development"), ("blue", "other")],
)  # fmt: skip
def test_the_tier_of_an_environment_is_guessed_from_its_name(name, tier):
    assert predefined.tier(name) == tier
