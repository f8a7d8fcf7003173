"""Regular expressions of users take a limited part of the processor and of memory."""

import re
import time
from collections.abc import Iterator

import pytest
import re2
from hypothesis import given
from hypothesis import strategies as st

from api_server import expressions
from api_server.expressions import Allowance, Expression, TooCostly, allowed, compile_expression


@pytest.fixture(autouse=True)
def nothing_compiled() -> Iterator[None]:
    cache = expressions._compile.cache
    kept = dict(cache)
    cache.clear()
    yield
    cache.clear()
    cache.update(kept)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (r"\pL{400}0", "pattern too large"),
        (r"\pL" * 20, "pattern too large"),
        (r"\pL" * 21, "more than 20 classes of Unicode"),
        (r"\W" * 5_000, "pattern too large"),
        (r"(?i)" + r"[^\x{80}]" * 1_700, "pattern too large"),
        ("x" * 16_000, "pattern too large"),
        ("x" * 16_001, "longer than 16000 characters"),
        (r"(?:.*){1000}", "pattern too large"),
        (r"((a{100}){100}){100}", "invalid repetition"),
        ("(" * 2_000, "missing"),
        ("\ud800", "not valid UTF-8"),
    ],
)
def test_what_is_too_large_is_refused_soon(text: str, reason: str) -> None:
    began = time.thread_time()
    with pytest.raises(ValueError, match=reason):
        compile_expression(text)
    assert time.thread_time() - began < 0.05


def test_what_was_refused_is_refused_without_another_look(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="missing"):
        compile_expression("(")
    monkeypatch.setattr(re2, "compile", None)
    with pytest.raises(ValueError, match="missing"):
        compile_expression("(")


def test_what_is_kept_is_bounded_by_its_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = expressions._compile.cache
    monkeypatch.setattr(cache, "_Cache__maxsize", 3 * expressions.MAX_MEMORY)
    for number in range(10):
        compile_expression(f"a{number}")
    assert len(cache) == 3
    assert cache.currsize == 3 * expressions.MAX_MEMORY


def test_usual_expressions_are_what_re2_says() -> None:
    found = compile_expression(r"^v(\d+)\.(\d+)$")
    assert found.search("v1.22").groups() == ("1", "22")
    assert found.search("xv1.22") is None
    assert found.fullmatch(b"v1.2")[1] == b"1"
    assert (found.pattern, found.groups) == (r"^v(\d+)\.(\d+)$", 2)


def test_a_long_text_and_a_large_expression_are_not_compared() -> None:
    large = compile_expression(r"\w{500}x")
    assert large.search("a" * 10_000) is None
    with pytest.raises(TooCostly, match="too long to be compared"):
        large.search("a" * 100_000)
    with pytest.raises(TooCostly):
        large.fullmatch("a" * 100_000)


def test_a_file_has_so_many_different_expressions() -> None:
    with allowed(Allowance(1.0, number=2)):
        for text in ("a", "b", "a", "b"):
            compile_expression(text)
        with pytest.raises(TooCostly, match="more than 2 different"):
            compile_expression("c")
    compile_expression("c")


def _match_for_ever(hard: Expression) -> None:
    while True:
        hard.search("a" * 5_000)


def test_compiling_and_matching_are_paid_for_also_by_those_together() -> None:
    together = Allowance(0.3)
    hard = compile_expression("|".join(f"a{{{number}}}x" for number in range(1, 60)))
    for _ in range(2):
        with allowed(Allowance(0.2, within=together)), pytest.raises(TooCostly, match="take too long"):
            _match_for_ever(hard)
    assert together.seconds < 0
    with allowed(Allowance(0.2, within=together)), pytest.raises(TooCostly):
        compile_expression("new")


@given(st.lists(st.text(alphabet="ab", max_size=9), max_size=30), st.sampled_from(["(?m)^a*$", "(?m)^.*b$"]))
def test_lines_are_the_same_however_long_the_text(lines: list[str], text: str) -> None:
    found = compile_expression(text)
    small = Expression(found.pattern, found._compiled, size=expressions.MAX_STEPS // 4)
    whole = "\n".join(lines).encode()
    expected = [match for match in re.findall(text.encode(), whole) if match]
    assert [line for line in small.lines(whole) if line] == expected
    assert [line for line in found.lines(whole) if line] == expected


def test_many_lines_end_where_the_allowance_does() -> None:
    hard = compile_expression("(?m)^" + "|".join(f"a{{{number}}}x" for number in range(1, 60)) + "$")
    lines = b"\n".join([b"a" * 200] * 20_000)
    began = time.thread_time()
    with allowed(Allowance(0.2)), pytest.raises(TooCostly):
        list(hard.lines(lines))
    assert time.thread_time() - began < 2
