"""What must never be shown: credentials in URLs and in texts."""

import base64
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api_server.git.remote.access import mask_url, sanitize

SECRETS = st.text(st.characters(codec="utf-8", exclude_categories=("C",), exclude_characters="*"), min_size=4)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://user:pw@h/p.git", "https://*****:*****@h/p.git"),
        ("https://user@h/p.git", "https://*****@h/p.git"),
        ("ssh://git@h/p.git", "ssh://git@h/p.git"),
        ("ssh://git:pw@h/p.git", "ssh://*****:*****@h/p.git"),
        ("ssh://bob@h:22/p.git", "ssh://*****@h:22/p.git"),
        ("http://h/p.git", "http://h/p.git"),
        ("https://a@b:c@d@h/p", "https://*****:*****@h/p"),
        ("http://[0:0:0:0:ffff:123.123.123.123]/foo.git", None),
    ],
)
def test_urls_are_shown_masked(url: str, shown: str | None) -> None:
    assert mask_url(url) == shown


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("at 'https://user:pw@h/p.git': no", "at 'https://*****:*****@h/p.git': no"),
        ("http://a@h/ and ssh://b:c@i/", "http://*****@h/ and ssh://*****:*****@i/"),
        ("git://h/p and git@h:p and ssh://git@h/p", "git://h/p and git@h:p and ssh://git@h/p"),
        ("https://h/path@2 stays", "https://h/path@2 stays"),
        ("ssh://", ""),
    ],
)
def test_urls_within_texts_are_masked(text: str, clean: str) -> None:
    assert sanitize(text) == clean


@given(SECRETS, SECRETS, st.text(max_size=10))
def test_no_known_form_of_a_secret_is_left_in_a_text(user: str, password: str, between: str) -> None:
    forms = [
        password,
        quote(password),
        quote(password, safe=""),
        quote_plus(password),
        base64.b64encode(password.encode()).decode(),
        base64.b64encode(f"{user}:{password}".encode()).decode(),
        base64.urlsafe_b64encode(f"{user}:{password}".encode()).decode().rstrip("="),
        user,
    ]
    clean = sanitize(between.join(forms), user=user, password=password)
    assert [form for form in forms if form in clean] == []


def test_the_service_user_git_is_no_secret() -> None:
    assert sanitize("git push: no", user="git", password="hunter22") == "git push: no"
