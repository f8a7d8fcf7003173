"""The condition language of `rules:if`."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api_server.ci.config.expressions import _parse, parse

KNOWN = {"A": "x", "EMPTY": "", "REF": "feature/v1", "PATTERN": "/^Feature/i", "PLAIN": "feature"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('$A == "x"', True),
        ("$A == 'x'", True),
        ('"x" == $A', True),
        ('$A != "x"', False),
        ("$A", True),
        ("$EMPTY", False),
        ("$MISSING", False),
        ("$MISSING == null", True),
        ("$EMPTY == null", False),
        ('$MISSING == ""', False),
        ('$EMPTY == ""', True),
        ("null == $MISSING", True),
        ("$REF =~ /^feature\\//", True),
        ("$REF =~ /V1/", False),
        ("$REF =~ /V1/i", True),
        ("$REF !~ /^fix/", True),
        ("$MISSING =~ /x/", False),
        ("$MISSING !~ /x/", True),
        ("$REF =~ $PATTERN", True),
        ("$REF =~ $MISSING", False),
        ("$REF !~ $MISSING", True),
        # A variable that holds no /regex/ makes the whole expression false, whatever the operator.
        ("$REF =~ $PLAIN", False),
        ("$REF !~ $PLAIN", False),
        # && binds closer than ||, parentheses closer than both.
        ("$A || $MISSING && $MISSING", True),
        ("($A || $MISSING) && $MISSING", False),
        ('$A == "x" && ($REF =~ /^fix/ || $REF =~ /^feature/)', True),
        ('$A=="x"&&$REF=~/v1$/', True),
        ('"it\'s" == "it\'s"', True),
        ('$A == "a && b" || $A == "x"', True),
        ('\n  $A == "x"\n  && $REF\n', True),
    ],
)
def test_expressions_mean_what_gitlab_says(text, expected):
    assert parse(text)(KNOWN) is expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "$",
        "$A ==",
        "== $A",
        "$A = 'x'",
        "$A == x",
        "$A && ",
        "($A",
        "$A)",
        "()",
        '"open',
        "/x/ =~ $A",
        "$A =~ /(/",
        "$A =~ /(?<=x)y/",
        "$A $B",
        "(" * 60 + "$A" + ")" * 60,
        "$A == '" + "x" * 20000 + "'",
    ],
)
def test_what_is_no_expression_is_a_value_error(text):
    with pytest.raises(ValueError, match="inv"):
        parse(text)


operands = st.sampled_from(["$A", "$B", "$C", "null", '"x"', "'y'", '""'])
comparisons = st.builds("{} {} {}".format, operands, st.sampled_from(["==", "!="]), operands)
matches = st.builds(
    "{} {} {}".format,
    operands,
    st.sampled_from(["=~", "!~"]),
    st.sampled_from(["/x/", "/^$/"]),
)
expressions = st.recursive(
    operands | comparisons | matches,
    lambda inner: (
        st.builds("{} {} {}".format, inner, st.sampled_from(["&&", "||"]), inner)
        | inner.map(lambda text: f"({text})")
    ),
    max_leaves=8,
)


def naive(text: str, known: dict[str, str | None]) -> bool:
    """The expression as Python: `and` and `or` have the same precedence there."""
    text = re.sub(r"(\S+) =~ /(\S+)/", r"(re.search('\2', \1 or '') is not None)", text)
    text = re.sub(r"(\S+) !~ /(\S+)/", r"(re.search('\2', \1 or '') is None)", text)
    # What stood in parentheses before an operand of a match now stands inside the call.
    text = text.replace("null", "None").replace("$A", "A").replace("$B", "B").replace("$C", "C")
    return bool(eval(text.replace("&&", "and").replace("||", "or"), {"re": re}, known))


values = st.sampled_from([None, "", "x", "y", "xy"])


@given(expressions, values, values, values)
def test_any_expression_agrees_with_a_naive_evaluator(text, a, b, c):
    spaced = text.replace("(", "( ").replace(")", " )")
    known = {key: value for key, value in {"A": a, "B": b, "C": c}.items() if value is not None}
    assert parse(spaced)(known) == naive(spaced, {"A": a, "B": b, "C": c})


@given(st.text(max_size=60) | st.text(alphabet="$AB='\"/()&|!~ ", max_size=40))
def test_any_text_parses_or_is_a_value_error(text):
    try:
        condition = parse(text)
    except ValueError:
        return
    assert condition({"A": "/a/"}) in {True, False}


def test_what_is_kept_is_bounded_by_its_bytes(monkeypatch):
    cache = _parse.cache
    cache.clear()
    monkeypatch.setattr(cache, "_Cache__maxsize", 2_000_000)
    for number in range(9):
        assert parse(f"$N{number}" + " || $A" * 600)(KNOWN)
    assert 0 < cache.currsize <= 2_000_000
    assert len(cache) < 9
    cache.clear()
