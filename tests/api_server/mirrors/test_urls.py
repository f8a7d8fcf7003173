"""Mirror URLs: credentials taken out, two of them compared, the project itself recognised."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api_server.git.remote.access import mask_url
from api_server.mirrors.configuration import MirrorUrl, is_same_repository, split_mirror_url, uniqueness_key

PRINTABLE = st.text(st.characters(codec="utf-8", exclude_categories=("C",)), min_size=1, max_size=20)


@pytest.mark.parametrize(
    ("url", "parts"),
    [
        ("https://alice:p%40ss@h/p.git", MirrorUrl("https://h/p.git", "alice", "p@ss")),
        ("https://token@h:8443/p.git", MirrorUrl("https://h:8443/p.git", "token", None)),
        ("https://alice@example.org:pw@h/p", MirrorUrl("https://h/p", "alice@example.org", "pw")),
        ("ssh://git@h:2222/p.git", MirrorUrl("ssh://h:2222/p.git", "git", None)),
        ("https://:pw@h/p.git", MirrorUrl("https://h/p.git", None, "pw")),
        ("git://[2001:db8::1]/p.git", MirrorUrl("git://[2001:db8::1]/p.git", None, None)),
        ("http://h/p.git", MirrorUrl("http://h/p.git", None, None)),
    ],
)
def test_credentials_are_taken_out_and_decoded(url: str, parts: MirrorUrl) -> None:
    assert split_mirror_url(url) == parts


@given(st.none() | PRINTABLE, st.none() | PRINTABLE)
def test_with_user_gives_back_the_user_but_never_the_password(user: str | None, password: str | None) -> None:
    shown = MirrorUrl("https://h/p.git", user, password).with_user
    again = split_mirror_url(shown)
    assert (again.url, again.user) == ("https://h/p.git", user)
    assert (again.password is None) is (password is None)
    assert again.password in (None, "*")


def test_masked_forms_of_stored_mirrors() -> None:
    def masked(url: str) -> str | None:
        return mask_url(split_mirror_url(url).with_user)

    assert masked("https://user:pw@h/p.git") == "https://*****:*****@h/p.git"
    assert masked("https://user@h/p.git") == "https://*****@h/p.git"
    assert masked("ssh://git@h/p.git") == "ssh://git@h/p.git"
    assert masked("http://h/p.git") == "http://h/p.git"


def test_a_url_that_cannot_be_parsed_is_refused() -> None:
    with pytest.raises(ValueError, match=r"IPv6|address"):
        split_mirror_url("http://[0:0:0:0:ffff:123.123.123.123]/foo.git")


def test_a_mirror_url_does_not_show_its_password() -> None:
    assert "s3cret" not in repr(split_mirror_url("https://alice:s3cret@h/p.git"))


@pytest.mark.parametrize(
    "other",
    ["https://a:b@example.org/p.git", "HTTPS://EXAMPLE.org:443/p.git", "https://example.org./p.git/"],
)
def test_spellings_of_one_url_have_one_key(other: str) -> None:
    assert uniqueness_key(other) == uniqueness_key("https://example.org/p.git")


@pytest.mark.parametrize(
    "other",
    [
        "https://example.org/p",
        "https://example.org/P.git",
        "http://example.org/p.git",
        "https://example.org:8443/p.git",
    ],
)
def test_different_urls_have_different_keys(other: str) -> None:
    assert uniqueness_key(other) != uniqueness_key("https://example.org/p.git")


@pytest.mark.parametrize(
    ("url", "own"),
    [
        ("https://forge.example.org/g/p", "https://forge.example.org/g/p.git"),
        ("https://a:b@forge.example.org/g/p.git/", "https://forge.example.org/g/p.git"),
        ("http://Forge.example.org//g/P.git", "https://forge.example.org/g/p.git"),
        ("http://forge.example.org:8080/g/%70", "http://forge.example.org:8080/g/p.git"),
        ("ssh://git@forge.example.org/g/p.git", "git@forge.example.org:g/p.git"),
        ("ssh://bob@forge.example.org:2222/g/p", "ssh://git@forge.example.org:2222/g/p.git"),
        ("git@forge.example.org:g/p", "ssh://git@forge.example.org/g/p.git"),
    ],
)
def test_the_project_itself_is_recognised(url: str, own: str) -> None:
    assert is_same_repository(url, own)


@pytest.mark.parametrize(
    ("url", "own"),
    [
        ("https://forge.example.org/g/p2.git", "https://forge.example.org/g/p.git"),
        ("http://127.0.0.1:8081/g/p.git", "http://127.0.0.1:8080/g/p.git"),
        ("ssh://git@forge.example.org:2222/g/p.git", "git@forge.example.org:g/p.git"),
        ("https://example.com/g/p.git", "https://forge.example.org/g/p.git"),
    ],
)
def test_other_repositories_are_not_the_project(url: str, own: str) -> None:
    assert not is_same_repository(url, own)
