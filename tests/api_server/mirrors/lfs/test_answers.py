"""Reading what targets answer to the LFS batch request."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api_server.git.lfs_pointers import Pointer
from api_server.mirrors.lfs import Action, LfsError, NoLfsError, Wanted, lfs_url, message_in, read_answer

ASKED = [Pointer(f"{number:064x}", number) for number in range(4)]
_ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
_ACTION = _ANYTHING | st.fixed_dictionaries(
    {"href": st.text(max_size=9) | _ANYTHING},
    optional={"header": _ANYTHING | st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=2)},
)
_OBJECT = st.fixed_dictionaries(
    {"oid": st.sampled_from([pointer.oid for pointer in ASKED] + ["f" * 64]) | _ANYTHING},
    optional={
        "size": _ANYTHING,
        "error": _ANYTHING | st.fixed_dictionaries({"message": _ANYTHING}),
        "authenticated": _ANYTHING,
        "actions": _ANYTHING | st.fixed_dictionaries({"upload": _ACTION}, optional={"verify": _ACTION}),
    },
)
_ANSWER = st.fixed_dictionaries(
    {"objects": _ANYTHING | st.lists(_OBJECT | _ANYTHING, max_size=6)},
    optional={"transfer": st.just("basic") | _ANYTHING, "hash_algo": st.just("sha256") | _ANYTHING},
)


@given(sent=_ANSWER | _ANYTHING)
def test_whatever_is_answered_each_object_that_was_asked_about_has_one_fate_and_no_other_has_any(
    sent: Any,
) -> None:
    try:
        answer = read_answer(json.dumps(sent).encode(), ASKED)
    except (NoLfsError, LfsError):
        return
    fates = [*answer.there, *(wanted.oid for wanted in answer.wanted), *answer.refused]
    assert sorted(fates) == [pointer.oid for pointer in ASKED]
    for wanted in answer.wanted:
        for action in filter(None, (wanted.upload, wanted.verify)):
            assert isinstance(action.href, str)
            assert all(isinstance(value, str) for value in action.header.values())


@given(body=st.binary(max_size=200))
def test_what_is_no_json_is_no_lfs(body: bytes) -> None:
    message_in(body)
    with pytest.raises((NoLfsError, LfsError)):
        read_answer(body, ASKED)


def test_what_is_there_what_is_wanted_and_what_is_refused() -> None:
    there, wanted, refused, _ = (pointer.oid for pointer in ASKED)
    objects = [
        {"oid": there, "size": 0},
        {
            "oid": wanted,
            "authenticated": True,
            "actions": {
                "upload": {"href": "http://a/"},
                "verify": {"href": "http://b/", "header": {"x": "y"}},
            },
        },
        {"oid": refused, "error": {"code": 422, "message": "no"}},
        {"oid": "f" * 64, "actions": {"upload": {"href": "http://c/"}}},
    ]
    answer = read_answer(json.dumps({"objects": objects}).encode(), ASKED)
    assert answer.there == {there}
    assert answer.wanted == (Wanted(wanted, Action("http://a/", {}), Action("http://b/", {"x": "y"}), True),)
    assert answer.refused == {refused: "no", ASKED[3].oid: "the target said nothing about it"}


@pytest.mark.parametrize(
    ("repository", "lfs"),
    [
        ("https://example.org/group/app.git", "https://example.org/group/app.git/info/lfs"),
        ("https://example.org/group/app", "https://example.org/group/app.git/info/lfs"),
        ("http://example.org:8080/app/?x=y", "http://example.org:8080/app.git/info/lfs"),
    ],
)
def test_the_lfs_server_is_found_beside_the_repository(repository: str, lfs: str) -> None:
    assert lfs_url(repository) == lfs
