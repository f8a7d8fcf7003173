"""Path patterns of `changes` and `exists`, which are not those of `include:local` (`test_includes.py`)."""

import contextlib
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api_server.ci.config.errors import ConfigError
from api_server.ci.config.patterns import MAX_ALTERNATIVES, PathSet, compile_glob, compile_wildcard
from api_server.expressions import Allowance, TooCostly, allowed
from tests.support.deviations import Deviations

#: A pattern, paths that Ruby 3.1 says it matches (`File.fnmatch` with FNM_PATHNAME, FNM_DOTMATCH and FNM_EXTGLOB), and
#: paths that it does not.
GLOBS = [
    ("*.md", ["README.md"], ["docs/a.md"]),
    ("**/*.md", ["README.md", "docs/deep/a.md", ".hidden/a.md"], []),
    ("docs/**/*.md", ["docs/a.md", "docs/a/b/c.md"], []),
    ("docs/**", ["docs/a"], ["docs/a/b"]),
    ("src/**", ["src/.x"], []),
    ("**", ["a"], ["a/b"]),
    ("**/", ["a/"], []),
    ("**/*", ["a/b/c", ".a"], []),
    ("docs/?.md", ["docs/a.md"], ["docs/ab.md"]),
    ("a?b", [], ["a/b"]),
    ("{a,b*}/x", ["bcd/x"], []),
    ("{a,b}/x", [], ["c/x"]),
    ("{a/b,c}/x", ["a/b/x"], []),
    ("{a,{b,c}}.x", ["c.x"], []),
    ("{a,}x", ["x"], []),
    ("{a}x", ["ax"], []),
    ("{}x", ["x"], []),
    ("{,}x", ["x"], []),
    ("{a,b", [], ["{a,b", "a"]),
    ("a}", ["a}"], []),
    ("a,b", ["a,b"], []),
    ("{**/x,y}", ["a/b/x"], []),
    ("{**/,}x", ["a/b/x", "x"], []),
    ("a{/**,}/x", ["a/x"], []),
    ("[a-c].txt", ["b.txt"], []),
    ("[!a-c].txt", [], ["b.txt"]),
    ("[^a-c].txt", ["d.txt"], []),
    ("[]a].txt", [], ["].txt", "a.txt"]),
    ("[a", [], ["[a", "a"]),
    ("[a/b]", ["a"], ["/"]),
    ("x[/]y", [], ["x/y"]),
    ("[!a]", [], ["/"]),
    ("[\\]]", ["]"], []),
    ("[a\\-c]", ["-"], ["b"]),
    ("[a-]", ["-"], []),
    ("[-a]", ["-"], []),
    ("[c-a]", [], ["b"]),
    ("[A-z]", ["_"], []),
    ("[.]x", [".x"], []),
    ("[[:alpha:]]", [], ["a"]),
    ("[!]a]", [], ["b"]),
    ("[]", [], ["[]", "]"]),
    ("[!]", ["!"], []),
    ("[é]", ["é"], []),
    ("?", ["é"], []),
    ("[a-é]", ["z"], []),
    ("a+b(c).txt", ["a+b(c).txt"], []),
    ("a.txt", [], ["aXtxt"]),
    ("\\*.txt", ["*.txt"], ["a.txt"]),
    ("\\a", ["a"], []),
    ("a\\", ["a"], ["a\\"]),
    ("\\\\", ["\\"], []),
    ("\\{a,b\\}", ["{a,b}"], []),
    ("{a\\,b,c}", ["a,b"], []),
    ("{a\\},b}", ["a}"], []),
    (".*", [".gitlab-ci.yml"], []),
    ("*", [".x"], ["x/y"]),
    ("a/*", ["a/"], []),
    ("*/", ["a/"], []),
    ("a//b", ["a//b"], ["a/b"]),
    ("./a", [], ["a"]),
    ("/a", ["/a"], ["a"]),
    ("a/**/b", ["a/b", "a/x/b"], []),
    ("a/**b", ["a/xb"], ["a/x/b"]),
    ("a**/b", ["ax/b"], ["a/x/b"]),
    ("***/b", ["a/b"], ["x/a/b"]),
    ("a/***", ["a/b"], []),
    ("a/***/b", [], ["a/x/y/b"]),
    ("**/**/a", ["x/a", "a", "x/y/z/a"], []),
    ("**/a/**/b", ["x/a/y/b"], []),
    ("**a", ["xa"], ["x/a"]),
    ("A.txt", [], ["a.txt"]),
    ("a/**/", ["a/b/"], []),
    ("a/", [], ["a"]),
    ("", [""], ["a"]),
    ("a/**/*", ["a/b"], ["a"]),
    ("**/.x/*", ["a/.x/b"], []),
    ("*.{js,ts}", ["a.ts"], ["b/a.ts"]),
    ("**/*.{js,ts}", ["b/a.ts"], []),
    ("**/{a,b}/*", ["x/b/y"], []),
    ("{*,**/*}.py", ["a/b.py"], []),
    ("src/{a,b}/**/*", ["src/a/x/y"], []),
    ("src/**/*.{c,h}", ["src/x/y.h"], []),
    ("[!.]*", [], [".x"]),
    ("?x", [".x"], []),
    ("a/?x", ["a/.x"], []),
    ("[a-c]*/**/d", ["b1/d"], []),
    ("**/[ab]", ["x/y/b"], []),
    ("{a,b}{c,d}", ["bc"], []),
    ("{{a,b},c}d", ["bd"], []),
    ("{a,b}/{c,d}/**", ["a/d/e"], []),
    ("@(a|b)", [], ["a"]),
    ("+(a)", [], ["aa"]),
    ("!(a)", [], ["b"]),
    ("a*b*c", ["axxbyyc"], ["axxbyy"]),
    ("a/*/c", ["a/b/c", "a//c"], ["a/b/x/c"]),
    ("[]-a]", [], ["^"]),
    ("[a\\]b]x", ["]x"], []),
    ("[^]x]", [], ["^"]),
]


def matching(glob: str, *paths: str) -> list[str]:
    return PathSet(frozenset(paths)).matching(glob)


def test_path_patterns_match_what_ruby_says():
    found = Deviations()
    for glob, those, others in GLOBS:
        with found.of(glob):
            assert matching(glob, *those, *others) == sorted(those)
    assert not found, found.report


def test_a_leading_slash_is_part_of_no_path():
    assert matching("/README.md", "README.md") == matching("/*.md", "README.md") == []
    assert matching("./README.md", "README.md") == []


def test_paths_of_several_lines_and_of_no_utf_8_do_no_harm():
    paths = ("a\nb", "b", "\udcff.md", "é.md")
    assert matching("?", *paths) == ["b"]
    assert matching("?.md", *paths) == ["é.md"]
    assert matching("*", *paths) == ["b", "é.md"]


PATTERNS = st.text(max_size=20) | st.text(alphabet="*/{},[]!-\\ab?^", max_size=30)


@given(PATTERNS, st.text(max_size=20))
def test_any_text_is_a_pattern_or_a_value_error(pattern, path):
    paths = PathSet(frozenset([path]))
    for matched in (paths.matching, paths.included):
        with contextlib.suppress(ValueError):
            assert set(matched(pattern)) <= {path}


@given(st.text(alphabet="*/ab?[", max_size=12), st.text(alphabet="/ab[?", max_size=8))
def test_what_includes_match_is_what_their_two_words_say(pattern, path):
    pieces = re.split(r"(\*\*?)", pattern)
    words = {"**": ".*?", "*": "[^/]*?"}
    expected = re.fullmatch("".join(words.get(piece) or re.escape(piece) for piece in pieces), path)
    assert any(one.search(path) for one in compile_wildcard(pattern)) is (expected is not None)


def test_comparing_patterns_with_paths_is_bounded():
    paths = PathSet(frozenset(map(str, range(10))))
    paths._left = 30
    assert paths.matching("1*") == ["1"]
    assert paths.matching("1*") == ["1"]
    with pytest.raises(ConfigError, match="too many path patterns"):
        paths.matching("2*")


@pytest.mark.parametrize(
    "glob",
    ["*" * 1001, "{a,b}" * 9, "{" + "a," * MAX_ALTERNATIVES + "}", "{" * 101 + "}" * 101, "?" * 1000],
)
def test_patterns_that_are_too_large_are_refused(glob):
    with pytest.raises(ValueError, match="pattern"):
        compile_glob(glob)


def test_many_alternatives_are_compiled_and_paid_for():
    many = "{a,b,c,d}" * 4
    assert matching(many, "abcd", "abce") == ["abcd"]
    with pytest.raises(TooCostly), allowed(Allowance(seconds=0.0)):
        compile_glob("{x,y}" * 6)
