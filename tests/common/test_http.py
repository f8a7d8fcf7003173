"""Entity tags, dates, ranges and request targets, which both processes read alike."""

import string
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common import http_fields, static_paths
from common.http_fields import Span, UnsatisfiableError
from common.static_paths import Archive, Kind, StaticPathError, parse


@pytest.mark.parametrize(
    ("lines", "current", "found"),
    [
        (['"a"'], '"a"', True),
        (['W/"a"'], '"a"', True),
        (['"a"'], 'W/"a"', True),
        (['"b", W/"a"'], '"a"', True),
        (['"b"', '"a"'], '"a"', True),
        (['"b,a"'], '"a"', False),
        (['"b"'], '"a"', False),
        (["*"], '"a"', True),
        (["*"], None, True),
        (['"*"'], '"a"', False),
        (['"*"'], '"*"', True),
        (['"a"'], None, False),
        (["a"], '"a"', True),
        ([""], '""', False),
        ([], '"a"', False),
        ([], '""', False),
    ],
)
def test_if_none_match_names_a_tag(lines: list[str], current: str | None, found: bool) -> None:
    assert http_fields.has_tag(lines, current) is found


DATE = "Fri, 15 Jan 2027 08:00:00 GMT"


@pytest.mark.parametrize(
    ("if_range", "etag", "last_modified", "applies"),
    [
        (None, None, None, True),
        ('"a"', '"a"', None, True),
        ('"a"', '"b"', None, False),
        ('"a"', None, None, False),
        ('W/"a"', 'W/"a"', None, False),
        ('"a"', 'W/"a"', None, False),
        (DATE, '"a"', DATE, True),
        (DATE, '"a"', "Fri, 15 Jan 2027 08:00:01 GMT", False),
        (DATE, '"a"', None, False),
        ("", '"a"', None, False),
    ],
)
def test_if_range_is_strict(
    if_range: str | None, etag: str | None, last_modified: str | None, applies: bool
) -> None:
    assert http_fields.range_applies(if_range, etag, last_modified) is applies


NOW = 1_800_000_000.0


@given(st.integers(0, 4_000_000_000))
def test_all_three_forms_of_a_date_are_read(timestamp: int) -> None:
    parts = time.gmtime(timestamp)
    now = float(timestamp)
    for form in ("%a, %d %b %Y %H:%M:%S GMT", "%A, %d-%b-%y %H:%M:%S GMT"):
        assert http_fields.parse_date(time.strftime(form, parts), now) == timestamp
    assert http_fields.parse_date(time.asctime(parts), now) == timestamp


@pytest.mark.parametrize(("year", "full"), [("77", 2077), ("78", 1978), ("27", 2027)])
def test_two_digits_of_a_year_are_at_most_fifty_years_ahead(year: str, full: int) -> None:
    short = http_fields.parse_date(f"Friday, 15-Jan-{year} 08:00:00 GMT", NOW)
    assert short == http_fields.parse_date(f"Fri, 15 Jan {full} 08:00:00 GMT", NOW)


@pytest.mark.parametrize(
    "value",
    [None, "", "0", "-1", "soon", "Fri, 32 Jan 2026 00:00:00 GMT", "Fri, 29 Feb 2026 00:00:00 GMT",
     "Fri, 15 Foo 2027 08:00:00 GMT", "Fri, 15 Jan 2027 24:00:00 GMT", "Fri, 15 Jan 2027 08:00:00 +0000",
     "Fri, 15 Jan 1969 08:00:00 GMT", "Fri, 1\u0665 Jan 2027 08:00:00 GMT"],
)  # fmt: skip
def test_what_is_no_date_is_none(value: str | None) -> None:
    assert http_fields.parse_date(value, NOW) is None


@given(st.text(max_size=60))
def test_no_text_breaks_the_parser(value: str) -> None:
    found = http_fields.parse_date(value, NOW)
    assert found is None or found >= 0


#: First and last byte; without the last one up to the end, without the first one that many from the end.
FROM = st.tuples(st.integers(0, 300), st.none() | st.integers(0, 300))
SUFFIX = st.tuples(st.none(), st.integers(0, 300))


@pytest.mark.parametrize(
    ("field", "parts"),
    [
        ("bytes=0-0", [(0, 0)]),
        ("bytes=2-4", [(2, 4)]),
        ("bytes=2-", [(2, 9)]),
        ("bytes=-3", [(7, 9)]),
        ("bytes=-99", [(0, 9)]),
        ("bytes=2-99", [(2, 9)]),
        ("bytes=0-9", [(0, 9)]),
        ("bytes=007-8", [(7, 8)]),
        ("Bytes=0-1", [(0, 1)]),
        (f"bytes=1-{'9' * 3000}", [(1, 9)]),
        ("bytes=0-1, 4-5", [(0, 1), (4, 5)]),
        ("bytes=4-5,,0-1,", [(4, 5), (0, 1)]),
        ("bytes=0-1,10-12", [(0, 1)]),
        ("bytes=0-4,2-6", [(0, 6)]),
        ("bytes=8-,-3", [(7, 9)]),
        ("bytes=0-1,2-3", [(0, 1), (2, 3)]),
    ],
)
def test_ranges_of_ten_bytes(field: str, parts: list[tuple[int, int]]) -> None:
    assert http_fields.requested_ranges(field, 10) == [Span(first, last) for first, last in parts]


@pytest.mark.parametrize(
    "field",
    [None, "", "bytes", "bytes=", "bytes=,", "bytes=-", "bytes=a-b", "bytes=1", "bytes=4-2", "bytes=0-1,4-2",
     "bytes=--1", "bytes=1-2-3", "bytes=0 - 1", "bytes=+1-2", "bytes=\u0661-\u0662", "lines=0-1", "0-1", "bytes 0-1",
     "bytes=" + "0-0," * 17],
)  # fmt: skip
def test_what_is_no_range_of_bytes_is_ignored(field: str | None) -> None:
    assert http_fields.requested_ranges(field, 10) is None


@pytest.mark.parametrize(
    ("field", "length"),
    [("bytes=10-", 10), ("bytes=10-12,20-", 10), ("bytes=-0", 10), ("bytes=0-", 0), ("bytes=-5", 0),
     (f"bytes={'9' * 3000}-", 10)],
)  # fmt: skip
def test_a_range_behind_the_end_cannot_be_satisfied(field: str, length: int) -> None:
    with pytest.raises(UnsatisfiableError):
        http_fields.requested_ranges(field, length)
    assert http_fields.content_range(None, length) == f"bytes */{length}"


@given(st.lists(FROM | SUFFIX, min_size=1, max_size=6), st.integers(1, 250))
def test_ranges_cover_exactly_the_bytes_asked_for(
    pairs: list[tuple[int | None, int | None]], length: int
) -> None:
    def text(number: int | None) -> str:
        return "" if number is None else str(number)

    field = "bytes=" + ",".join(f"{text(first)}-{text(last)}" for first, last in pairs)
    asked = {n for first, last in pairs for n in _bytes(first, last, length)}
    try:
        spans = http_fields.requested_ranges(field, length)
    except UnsatisfiableError:
        assert not asked
        return
    if spans is None:
        assert any(first is not None and last is not None and last < first for first, last in pairs)
        return
    sent = [n for span in spans for n in range(span.first, span.last + 1)]
    assert sorted(sent) == sorted(asked)
    assert sum(span.length for span in spans) == len(sent)


def _bytes(first: int | None, last: int | None, length: int) -> range:
    """Return the bytes of one range, computed in a simple and slow way."""
    everything = range(length)
    if first is None:
        return everything[-last:] if last else range(0)
    return everything[first:] if last is None else everything[first : last + 1]


@given(st.text(max_size=60), st.integers(0, 100))
def test_no_field_value_breaks_the_parser(value: str, length: int) -> None:
    for field in (value, f"bytes={value}"):
        try:
            spans = http_fields.requested_ranges(field, length)
        except UnsatisfiableError:
            continue
        for span in spans or []:
            assert 0 <= span.first <= span.last < length
            assert http_fields.content_range(span, length) == f"bytes {span.first}-{span.last}/{length}"


SEGMENT = st.text(st.characters(codec="utf-8", exclude_characters="/\\\0"), min_size=1, max_size=12).filter(
    lambda text: text not in {".", "..", "raw", "-"}
)


@pytest.mark.parametrize(
    ("target", "kind", "project", "rest"),
    [
        ("/group/app/-/raw/main/README.md", Kind.RAW, "group/app", "main/README.md"),
        ("/group/app/raw/main/README.md", Kind.RAW, "group/app", "main/README.md"),
        ("/a/b/c/-/raw/feature/x/src/a.c", Kind.RAW, "a/b/c", "feature/x/src/a.c"),
        ("/group/app/-/archive/v1/app-v1.zip", Kind.ARCHIVE, "group/app", "v1/app-v1.zip"),
        ("/group/app/-/archive/x/raw/y/app.tar", Kind.ARCHIVE, "group/app", "x/raw/y/app.tar"),
        ("/group/app/-/raw/x/-/archive/y.zip", Kind.RAW, "group/app", "x/-/archive/y.zip"),
        ("/group/app/-/raw/main/a%20b%2Bc", Kind.RAW, "group/app", "main/a b+c"),
        ("http://example.org/group/app/-/raw/main/x", Kind.RAW, "group/app", "main/x"),
        ("HTTPS://[::1]:8080/group/app/-/archive/main/x.zip", Kind.ARCHIVE, "group/app", "main/x.zip"),
    ],
)
def test_the_first_marker_decides(target: str, kind: Kind, project: str, rest: str) -> None:
    path = parse(target)
    assert (path.kind, path.project, path.rest) == (kind, project, rest)


@pytest.mark.parametrize(
    "target",
    [
        "",
        "*",
        "group/app/-/raw/main/x",
        "/raw/main/x",
        "/-/raw/main/x",
        "/group/app/-/raw",
        "/group/app/-/raw/",
        "/group/app/-/tree/main",
        "/group/app/-/jobs/1/artifacts/raw/x",
        "/-/snippets/1/raw/main/x",
        "/group/app/archive/main/x.zip",
        "/group//app/-/raw/main/x",
        "/group/app/-/raw/main//x",
        "/group/app/-/raw/main/../../../secret/-/raw/main/x",
        "/group/app/-/raw/./x",
        "/group/app/-/raw/main/%2e%2e/x",
        "/group/app/-/raw/main/..%2fx",
        "/group%2Fapp/-/raw/main/x",
        "/group/app/-/raw/main%5cx/y",
        "/group/app/-/raw/main\\x/y",
        "/group/app/-/raw/main/x%00",
        "/group/app/-/raw/main/%zz",
        "/group/app/-/raw/main/%ff",
        "/group/app/-/raw/main/x#y",
        "/group/app/-/raw/main/é",
        "http://example.org",
        "http://example.org?/group/app/-/raw/main/x",
        "http:/group/app/-/raw/main/x",
        "ftp://example.org/group/app/-/raw/main/x",
        "//example.org/group/app/-/raw/main/x",
        "/group/app/-/archive/main/x.zip?path=../..",
        "/group/app/-/archive/main/x.zip?path=a%00",
        "/group/app/-/raw/main/x?token=a%0d%0aX-Evil:1",
        "/group/app/-/raw/main/" + "x" * 9000,
        "/group/app/-/raw/main/x?" + "&".join(f"a{n}=1" for n in range(200)),
    ],
)
def test_what_is_no_static_object_or_ambiguous_is_refused(target: str) -> None:
    with pytest.raises(StaticPathError):
        parse(target)


@pytest.mark.parametrize(
    ("query", "counted"),
    [
        ("inline=true", "?inline=true"),
        ("inline=false&inline=true", "?inline=false"),
        ("inline=1", ""),
        ("inline=TRUE", ""),
        ("append_sha=true&path=docs", ""),
        ("x=1&token=flso-1", ""),
    ],
)
def test_of_a_raw_file_only_inline_counts(query: str, counted: str) -> None:
    assert parse(f"/g/a/-/raw/main/x?{query}").target == f"/g/a/-/raw/main/x{counted}"


@pytest.mark.parametrize(
    ("query", "counted"),
    [
        ("path=docs&append_sha=true", "?append_sha=true&path=docs"),
        ("path=/docs//api/", "?path=docs%2Fapi"),
        ("path=", ""),
        ("path=/", ""),
        ("append_sha=yes", ""),
        ("inline=false", ""),
        ("path=a+b", "?path=a+b"),
        ("path=a%20b", "?path=a+b"),
    ],
)
def test_of_an_archive_append_sha_and_path_count(query: str, counted: str) -> None:
    assert parse(f"/g/a/-/archive/m/a.zip?{query}").target == f"/g/a/-/archive/m/a.zip{counted}"


@pytest.mark.parametrize(
    ("name", "format_"),
    [("a.zip", "zip"), ("a.tar", "tar"), ("a.tar.gz", "tar.gz"), ("a.tgz", "tar.gz"), ("a.gz", "tar.gz"),
     ("a.tar.bz2", "tar.bz2"), ("a.tbz2", "tar.bz2"), ("a.tbz", "tar.bz2"), ("a.tb2", "tar.bz2"), ("a.bz2", "tar.bz2")],
)  # fmt: skip
def test_an_archive_is_split_at_its_last_slash_or_all_of_it_is_a_ref(name: str, format_: str) -> None:
    named, whole = Archive("improve/it", "a", format_), Archive("improve/it/a", "", format_)
    assert parse(f"/g/a/-/archive/improve/it/{name}").archives == [named, whole]
    assert parse(f"/g/a/-/archive/{name}").archives == [Archive("a", "", format_)]


@pytest.mark.parametrize("rest", ["main/a.html", "main/a", "main/.zip", ".zip", "zip"])
def test_other_endings_are_no_archive(rest: str) -> None:
    assert parse(f"/g/a/-/archive/{rest}").archives == []


def test_the_token_is_read_but_is_no_part_of_the_object() -> None:
    path = parse("/g/a/-/raw/main/x?token=flso-1&inline=false")
    assert path.token == "flso-1"
    assert path.target == "/g/a/-/raw/main/x?inline=false"
    assert "flso-1" not in repr(path)


@given(st.lists(SEGMENT, min_size=1, max_size=4), st.lists(SEGMENT, min_size=1, max_size=5), st.booleans())
def test_the_canonical_target_is_a_fixed_point(project: list[str], rest: list[str], dashed: bool) -> None:
    path = static_paths.StaticPath(Kind.RAW, "/".join(project), "/".join(rest), dashed)
    again = parse(path.target)
    assert again == path
    assert again.target == path.target
    assert path.target.isascii()


@given(st.text(max_size=80), st.text(max_size=40))
def test_no_target_makes_the_reader_fail_otherwise(path: str, query: str) -> None:
    for target in (path, f"/g/a/-/raw/{path}?{query}", f"/g/a/-/archive/{path}?path={query}&token={query}"):
        try:
            read = parse(target)
        except StaticPathError:
            continue
        assert parse(read.target).target == read.target


@given(st.text(string.printable, max_size=60))
def test_two_spellings_of_one_segment_are_one_object(text: str) -> None:
    escaped = "".join(f"%{byte:02X}" for byte in text.encode())
    try:
        target = parse(f"/g/a/-/raw/main/{escaped}").target
    except StaticPathError:
        return
    assert parse(target).rest == f"main/{text}"
