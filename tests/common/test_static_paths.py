"""How request targets are read: one spelling for each object, and refusal of all that is ambiguous."""

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common import static_paths
from common.static_paths import Archive, Kind, StaticPathError, parse

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
