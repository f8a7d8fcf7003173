"""`include` in all its forms, and the path patterns of `changes` and `exists`."""

import base64
import contextlib
import hashlib
import re

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from api_server.ci.config.configuration import read
from api_server.ci.config.context import Context, OtherProject, RemoteFile, Repository
from api_server.ci.config.errors import CiConfigError, FilesNeeded
from api_server.ci.config.patterns import MAX_ALTERNATIVES, PathSet, compile_glob, compile_wildcard
from api_server.ci.config.pipeline import plan_pipeline
from api_server.ci.config.variables import Variable
from api_server.expressions import Allowance, TooCostly, allowed
from tests.support.deviations import Deviations
from tests.support.tables import tables_of

from .planning import context, errors, job, jobs, only

TABLES = tables_of(__file__)


def test_includes_are_merged_below_the_file_and_later_ones_over_earlier_ones():
    files = {
        "ci/a.yml": "variables: {X: a, Y: a}\nstages: [one]\ntest: {tags: [a], script: a}",
        "ci/b.yaml": "include: /ci/deep/c.yml\nvariables: {Y: b}",
        "ci/deep/c.yml": ".c: {image: c}",
    }
    text = "include: [ci/a.yml, {local: /ci/b.yaml}]\ntest: {extends: .c, stage: one, script: own}"
    found = job(text, files=files)
    assert (found.script, found.tags, found.image.name) == (("own",), ("a",), "c")
    assert {one.key: one.value for one in found.variables} == {"X": "a", "Y": "b"}
    taken = read(text, context(files=files)).includes
    assert [one.location for one in taken] == ["ci/a.yml", "ci/b.yaml", "ci/deep/c.yml"]


def test_includes_take_wildcards_variables_and_rules():
    files = {name: f"{name[3]}: {{script: x}}" for name in ("ci/a.yml", "ci/b.yml", "ci/z.yml")}
    assert set(jobs("include: ci/*.yml", files=files)) == {"a", "b", "z"}
    assert set(jobs("include: ci/$WHICH.yml", files=files, given={"WHICH": "b"})) == {"b"}
    ruled = "include: [{local: ci/a.yml, rules: [{if: $GO}]}, ci/b.yml]"
    assert set(jobs(ruled, files=files)) == {"b"}
    assert set(jobs(ruled, files=files, given={"GO": "1"})) == {"a", "b"}


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("configs/*.yml", {"configs/a.yml"}),
        ("/configs/*.yml", {"configs/a.yml"}),
        ("configs/**.yml", {"configs/a.yml", "configs/x/b.yml", "configs/x/y/c.yml"}),
        ("configs/**/*.yml", {"configs/x/b.yml", "configs/x/y/c.yml"}),
        ("**/*.yml", {"configs/a.yml", "configs/x/b.yml", "configs/x/y/c.yml"}),
        ("**.yml", {"[r]oot?.yml", "configs/a.yml", "configs/x/b.yml", "configs/x/y/c.yml"}),
        ("configs/*/*.yml", {"configs/x/b.yml"}),
        ("configs/x/*/c.yml", {"configs/x/y/c.yml"}),
        # all characters except the star stand for themselves
        ("[r]oot?*", {"[r]oot?.yml"}),
        ("configs/?.yml*", set()),
        ("configs/{a,b}*", set()),
        ("configs/[a-z]*", set()),
        ("configs.*", set()),
        ("*.YML", set()),
    ],
)
def test_wildcards_of_includes(pattern, expected):
    """Their patterns differ from those of `changes` and `exists`."""
    files = dict.fromkeys(
        ("[r]oot?.yml", "configs/a.yml", "configs/x/b.yml", "configs/x/y/c.yml"), ".a: {script: x}"
    )
    found = read(f"include: {{local: '{pattern}'}}\na: {{script: x}}", context(files=files))
    assert {one.location for one in found.includes} == expected
    nothing = f"No file matches `{pattern}`"
    assert found.warnings == (() if expected else (nothing,))


def test_a_wildcard_that_would_match_the_file_itself_were_it_in_a_folder_is_no_circle():
    text = "include: {local: '**/*.yml'}\na: {script: x}"
    assert set(jobs(text, files={".gitlab-ci.yml": text, "ci/b.yml": "b: {script: x}"})) == {"a", "b"}


@pytest.mark.parametrize(
    ("text", "files", "expected"),
    [
        ("include: a.yml", {}, "Local file `a.yml` does not exist!"),
        ("include: ci/*", {"ci/a.txt": "x"}, "Included file `ci/a.txt` does not have YAML extension!"),
        ("include: a.txt", {"a.txt": "x"}, "Included file `a.txt` does not have YAML extension!"),
        ("include: a.yml", {"a.yml": " "}, "Local file `a.yml` is empty!"),
        ("include: a.yml", {"a.yml": "include: a.yml"}, "Local file `a.yml` includes itself: a.yml -> a.yml"),
        ("include: a.yml", {"a.yml": "x: ["}, "`a.yml`: Invalid configuration format"),
        ("include: a.yml", {"a.yml": "include: b.yml", "b.yml": "include: a.yml"}, "a.yml -> b.yml -> a.yml"),
        (
            "include: [" + "a.yml, " * 151 + "]",
            {"a.yml": "a: {script: x}"},
            "Maximum of 150 nested includes are allowed!",
        ),
        (
            "include: f0.yml",
            {f"f{n}.yml": f"include: f{n + 1}.yml" for n in range(40)},
            "Includes are nested deeper than 20 levels",
        ),
    ],
)
def test_includes_that_cannot_be_are_refused(text, files, expected):
    assert expected in errors(text, files=files)[0]


PROJECTS = {
    ("group/lib", None): {
        "a.yml": "include: [{local: b.yml}, {local: 'more/*.yml'}]\na: {script: x}",
        "b.yml": "b: {script: $NAME}",
        "more/c.yml": "c: {script: x}",
        "circle.yml": "include: {project: group/lib, file: circle.yml}",
        "empty.yml": " ",
        "bad.yml": "x: [",
    },
    ("group/lib", "v1"): {"a.yml": "old: {script: x}"},
}
URL = "https://example.org/ci.yml"


def outside(remote: dict[str, RemoteFile] | None = None, **kwargs) -> Context:
    """Return a context with the projects of PROJECTS, and with files at URLs."""
    known = {
        (path, ref): Repository(read=files.get, paths=files.keys, project=path, sha=str(ref))
        for (path, ref), files in PROJECTS.items()
    }

    def project(path: str, public: bool) -> OtherProject | None:
        there = not public and path in {path for path, _ in known}
        return OtherProject(at=lambda ref: known.get((path, ref))) if there else None

    return evolve(context(**kwargs), project=project, remote=remote or {})


def names(text: str, **kwargs) -> set[str]:
    return {one.name for one in plan_pipeline(text, outside(**kwargs)).jobs}


def refusal(text: str, **kwargs) -> str:
    with pytest.raises(CiConfigError) as caught:
        plan_pipeline(text, outside(**kwargs))
    return caught.value.errors[0]


def test_files_of_other_projects_are_taken_and_local_ones_in_them_are_that_projects():
    assert names("include: {project: group/lib, file: a.yml}") == {"a", "b", "c"}
    assert names("include: {project: group/lib, file: [/b.yml, more/c.yml]}") == {"b", "c"}
    assert names(
        "include: [{project: $LIB, file: a.yml, ref: $REF}]", given={"LIB": "group/lib", "REF": "v1"}
    ) == {"old"}
    ruled = "include: {project: group/lib, file: b.yml, rules: [{if: $NO}]}\nown: {script: x}"
    assert names(ruled) == {"own"}


def test_whether_a_file_exists_is_asked_where_the_include_is_written():
    def found(name: str) -> set[str]:
        theirs = {
            "a.yml": f"include: {{local: b.yml, rules: [{{exists: [{name}]}}]}}",
            "b.yml": f"b: {{script: x}}\nc: {{script: x, rules: [{{exists: [{name}]}}]}}",
        }
        own = outside(files={"mine": ""})
        other = Repository(read=theirs.get, paths=theirs.keys, project="group/other")
        text = "include: {project: group/other, file: a.yml}\nown: {script: x}"
        planned = plan_pipeline(text, evolve(own, project=lambda *_: only(other)))
        return {one.name for one in planned.jobs}

    assert found("b.yml") == {"own", "b"}  # but jobs use the pipeline's commit
    assert found("mine") == {"own"}
    remote = {URL: RemoteFile(content=b"include: {remote: 'https://a.org/b.yml', rules: [{exists: [mine]}]}")}
    assert names(f"include: {URL}\nown: {{script: x}}", remote=remote, files={"mine": ""}) == {"own"}


def test_whether_a_file_exists_in_another_project_is_asked_with_the_rights_of_who_asks():
    def project(path: str, public: bool) -> OtherProject | None:
        """Return the only project, which is not public. Its commits differ in their paths."""
        if public or path != "group/lib":
            return None
        return OtherProject(at=lambda ref: None if ref == "gone" else Repository(paths=lambda: [f"at-{ref}"]))

    def outcome(exists: str, text: str = "own: {script: x, rules: [{exists: %s}]}\nb: {script: x}") -> object:
        wanted = evolve(
            outside(), overrides=(Variable("LIB", "lib"), Variable("NO", "no", masked=True)), project=project
        )
        remote = RemoteFile(content=(b"include: {local: a.yml, rules: [{exists: %s}]}" % exists.encode()))
        try:
            planned = plan_pipeline(text.replace("%s", exists), evolve(wanted, remote={URL: remote}))
        except CiConfigError as refused:
            return refused.errors
        return {one.name for one in planned.jobs}

    assert outcome("{paths: [at-None], project: group/$LIB}") == {"own", "b"}
    assert outcome("{paths: [at-None], project: group/$LIB, ref: v1}") == {"b"}
    assert outcome("{paths: ['at-*'], project: group/$LIB, ref: $LIB}") == {"own", "b"}
    assert outcome("{paths: [a], project: group/$NO}") == (
        "rules:exists:project `group/$NO` is not a valid project path",
    )
    assert outcome("{paths: [a], project: group/$LIB, ref: gone}") == (
        "rules:exists:ref `gone` is not a valid ref in project `group/$LIB`",
    )
    assert outcome("{paths: [a], ref: v1}") == (
        "jobs:own:rules:rule:exists config missing required keys: project",
    )
    assert outcome("{paths: [at-None], project: group/lib}", f"include: {URL}\nb: {{script: x}}") == (
        "rules:exists:project `group/lib` is not a valid project path",
    )


@pytest.mark.parametrize(
    ("include", "expected"),
    [
        ("project: group/gone, file: a.yml", "Project `group/gone` not found or access denied! Make sure"),
        ("project: group/lib, file: []", "include:file can't be blank"),
        ("project: group/lib, file: no.yml", "Project `group/lib` file `no.yml` does not exist!"),
        ("project: group/lib, file: empty.yml", "Project `group/lib` file `empty.yml` is empty!"),
        ("project: group/lib, file: a.txt", "Included file `a.txt` does not have YAML extension!"),
        ("project: group/lib, file: bad.yml", "`bad.yml`: Invalid configuration format"),
        ("project: group/lib, file: circle.yml", "circle.yml` includes itself: circle.yml -> circle.yml"),
    ],
)
def test_files_of_other_projects_that_cannot_be_read_are_named(include, expected):
    assert expected in refusal(f"include: {{{include}}}")


def test_files_of_the_web_are_asked_for_all_at_once_and_then_taken():
    text = f"include: [{URL}, {{remote: 'https://example.org/$NAME.yml'}}, {URL}]\nown: {{script: x}}"
    given = (Variable("NAME", "secret", masked=True),)
    other = "https://example.org/secret.yml"
    with pytest.raises(FilesNeeded) as wanted:
        plan_pipeline(text, evolve(outside(), overrides=given))
    assert wanted.value.urls == (URL, other)
    remote = {URL: RemoteFile(content=b"one: {script: x}"), other: RemoteFile(content=b"two: {script: x}")}
    found = read(text, evolve(outside(remote), overrides=given))
    assert list(found.jobs) == ["one", "two", "own"]
    shown = [(one.type, one.location) for one in found.includes]
    assert shown == [("remote", URL), ("remote", "https://example.org/.yml"), ("remote", URL)]


def test_a_file_of_the_web_includes_as_a_stranger_and_knows_no_variables():
    def taken(content: str) -> set[str]:
        return names(f"include: {URL}", remote={URL: RemoteFile(content=content.encode())}, given={"GO": "1"})

    assert taken("include: [{remote: 'https://a.org/$GO.yml', rules: [{if: $GO}]}]\na: {script: x}") == {"a"}
    for content, expected in {
        "include: b.yml": "Local file `b.yml` does not have project!",
        "include: {project: group/lib, file: a.yml}": "Project `group/lib` not found or access denied!",
    }.items():
        with pytest.raises(CiConfigError) as caught:
            taken(content)
        assert expected in caught.value.errors[0]


def test_integrity_is_that_of_the_bytes():
    content = b"a: {script: x}"
    remote = {URL: RemoteFile(content=content)}
    digest = base64.b64encode(hashlib.sha256(content).digest()).decode()
    include = "include: [{remote: '%s', integrity: 'sha256-%s'}]"
    assert names(include % (URL, digest), remote=remote) == {"a"}
    other = base64.b64encode(hashlib.sha256(b"b").digest()).decode()
    assert refusal(include % (URL, other), remote=remote) == (
        f"Remote file `{URL}` is not the one that include:integrity names!"
    )
    for wrong in ("abc", "é" * 44, "="):
        assert "Base64" in refusal(include % (URL, wrong), remote=remote)


def test_what_is_said_of_a_file_of_the_web_holds_no_secret_of_its_url():
    url = "https://user:pass@example.org/ci.yml?private_token=hidden"
    for file, expected in {
        RemoteFile(problem="could not be fetched because of HTTP code `404` error!"): "could not be fetched",
        RemoteFile(content=b" "): "is empty!",
        RemoteFile(content=b"x: ["): "Invalid configuration format",
    }.items():
        said = refusal(f"include: '{url}#.yml'", remote={url + "#.yml": file})
        assert expected in said
        assert "`https://example.org/ci.yml`" in said
        assert not any(secret in said for secret in ("user", "pass", "hidden"))


def test_a_hundred_and_fifty_files_in_all_whatever_they_are():
    remote = {URL: RemoteFile(content=b".a: {}")}
    many = "include: [%s]\nown: {script: x}"
    assert names(many % ", ".join([URL] * 150), remote=remote) == {"own"}
    assert refusal(many % ", ".join([URL] * 151), remote=remote) == (
        "Maximum of 150 nested includes are allowed!"
    )
    assert refusal(many % ", ".join(f"https://a.org/{n}.yml" for n in range(151))) == (
        "Maximum of 150 nested includes are allowed!"
    )


def test_changes_are_compared_to_where_the_history_left_a_ref():
    text = "a: {script: x, rules: [{changes: {paths: ['docs/*'], compare_to: $BASE}}]}"
    asked = []

    def since(ref: str) -> list[str]:
        asked.append(ref)
        return ["docs/a.md"] if ref == "main" else []

    def found(base: str) -> bool:
        wanted = context(given={"BASE": base}, changed=["docs/b.md"])
        wanted = evolve(wanted, repository=evolve(wanted.repository, changed_since=since))
        return bool(plan_pipeline(text, wanted).jobs)

    assert (found("main"), found("other"), asked) == (True, False, ["main", "other"])
    many = "\n".join(text.replace("$BASE", f"b{n}").replace("a:", f"a{n}:", 1) for n in range(21))
    wanted = evolve(context(), repository=Repository(changed_since=since))
    with pytest.raises(CiConfigError, match="compare_to is for at most 20 different refs"):
        plan_pipeline(many, wanted)
    assert errors(text, given={"BASE": "gone"}) == ("rules:changes:compare_to is not a valid ref",)


#: A pattern, paths that match it in Ruby 3.1 (`File.fnmatch` with FNM_PATHNAME, FNM_DOTMATCH and FNM_EXTGLOB), and
#: paths that do not.
GLOBS = TABLES["globs"]


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
    paths._budget = 30
    assert paths.matching("1*") == ["1"]
    assert paths.matching("1*") == ["1"]
    with pytest.raises(CiConfigError, match="too many path patterns"):
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
