"""The condition language of `rules:if`."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api_server.ci.config.rules import _parse_cached, parse_condition

KNOWN = {
    "A": "x",
    "EMPTY": "",
    "BLANK": " \t",
    "REF": "feature/v1",
    "PATTERN": "/^Feature/i",
    "PART": "feature",
    "UNFIT": "/(/",
    "PART2": "(",
    "ALL": "//",
    "LINES": "some\n/^FEATURE/i\ntext",
}


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
        # What is on the right and no /regex/ is searched for what is on the left.
        ("$PART =~ $REF", True),
        ("$PART !~ $REF", False),
        ("$REF =~ $PART", False),
        ("$REF !~ $PART", True),
        ('$PART =~ "the feature"', True),
        ('$REF =~ "/^FEATURE/i"', True),
        ("$MISSING =~ $REF", True),
        ("$EMPTY =~ $REF", True),
        ("$REF =~ $EMPTY", False),
        ("$MISSING =~ $EMPTY", True),
        ("$MISSING =~ null", False),
        ("$REF =~ $UNFIT", False),
        ("$PART2 =~ $UNFIT", True),
        ("$REF =~ $ALL", True),
        ("$MISSING =~ $ALL", True),
        ("$MISSING =~ /^$/", True),
        ("$REF =~ $LINES", True),
        ("$LINES =~ /^some/", True),
        ("$LINES =~ /^text/", False),
        ("$LINES =~ /^text/m", True),
        ("$REF =~ /feature.v1/", True),
        ("$REF =~ /feature\\/v1/", True),
        # A /regex/ that is compared is equal to nothing.
        ("$REF == /^feature/", False),
        ("$REF != /^feature/", True),
        # && and || give one of their operands, of which only null and false make the other one count.
        ('$EMPTY && "x"', True),
        ('"x" && $EMPTY', False),
        ('$EMPTY || "x"', False),
        ("$BLANK", False),
        ('("x" || "y") == "x"', True),
        ('"x" == ("y" && "x")', True),
        ('"x" == ("y" || "x")', False),
        ('"x" == "y" || "x"', True),
        ('(null || ("y" == "x"))', False),
        ('("x" == ("x" || (("1" == "1") && ("2" == "3"))))', True),
        ('$A == "x" == $A', False),
        ('($A == "x") == ($REF =~ /v1/)', True),
        ("($A) =~ /x/", True),
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
    assert parse_condition(text)(KNOWN) is expected


def test_of_what_may_stand_on_both_sides_of_a_match():
    texts = ("1234", "23", "/23/")
    matching = [(left, right) for left in texts for right in texts
                if parse_condition("$LEFT =~ $RIGHT")({"LEFT": left, "RIGHT": right})]  # fmt: skip
    assert matching == [
        ("1234", "1234"),
        ("1234", "/23/"),
        ("23", "1234"),
        ("23", "23"),
        ("23", "/23/"),
        ("/23/", "/23/"),
    ]


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
        "(/x/)",
        "(" * 60 + "$A" + ")" * 60,
        "$A == '" + "x" * 20000 + "'",
    ],
)
def test_what_is_no_expression_is_a_value_error(text):
    with pytest.raises(ValueError, match="inv"):
        parse_condition(text)


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


class Text(str):
    """A text that counts as true even if it is empty, as in Ruby."""

    def __bool__(self):
        return True


def naive(text: str, known: dict[str, str | None]) -> bool:
    """The expression as Python: `and` and `or` have the same precedence there."""
    text = re.sub(r"(\"\w*\"|'\w*')", r"Text(\1)", text)
    text = re.sub(r"(\S+) =~ /(\S+)/", r"(re.search('\2', \1 or '') is not None)", text)
    text = re.sub(r"(\S+) !~ /(\S+)/", r"(re.search('\2', \1 or '') is None)", text)
    # What stood in parentheses before an operand of a match now stands inside the call.
    text = text.replace("null", "None").replace("$A", "A").replace("$B", "B").replace("$C", "C")
    texts = {key: value if value is None else Text(value) for key, value in known.items()}
    value = eval(text.replace("&&", "and").replace("||", "or"), {"re": re, "Text": Text}, texts)
    return value not in (None, False, "")


values = st.sampled_from([None, "", "x", "y", "xy"])


@given(expressions, values, values, values)
def test_any_expression_agrees_with_a_naive_evaluator(text, a, b, c):
    spaced = text.replace("(", "( ").replace(")", " )")
    known = {key: value for key, value in {"A": a, "B": b, "C": c}.items() if value is not None}
    assert parse_condition(spaced)(known) == naive(spaced, {"A": a, "B": b, "C": c})


@given(st.text(max_size=60) | st.text(alphabet="$AB='\"/()&|!~ ", max_size=40))
def test_any_text_parses_or_is_a_value_error(text):
    try:
        condition = parse_condition(text)
    except ValueError:
        return
    assert condition({"A": "/a/"}) in {True, False}


def test_a_long_row_of_operators_is_no_deep_one():
    for operator in ("==", "!=", "=~", "!~", "&&", "||"):
        assert parse_condition(f"$A {operator} " * 1200 + "$A")(KNOWN) in {True, False}


def test_what_is_kept_is_bounded_by_its_bytes(monkeypatch):
    cache = _parse_cached.cache
    cache.clear()
    monkeypatch.setattr(cache, "_Cache__maxsize", 2_000_000)
    for number in range(9):
        assert parse_condition(f"$N{number}" + " || $A" * 600)(KNOWN)
    assert 0 < cache.currsize <= 2_000_000
    assert len(cache) < 9
    cache.clear()
