"""The text of a URL: what is acceptable at all, with GitLab's words for the rest."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api_server.outbound.destinations import (
    HTTP_SCHEMES,
    MIRROR_SCHEMES,
    BlockedError,
    Destination,
    parse_destination,
)


@pytest.mark.parametrize(
    ("url", "destination"),
    [
        ("https://example.org/p.git", Destination("https", "example.org", 443)),
        ("HTTP://Example.ORG:8080/p.git", Destination("http", "example.org", 8080)),
        ("ssh://git@example.org/p.git", Destination("ssh", "example.org", 22)),
        ("git://[2001:db8::1]/p.git", Destination("git", "2001:db8::1", 9418)),
        ("https://alice:p%40ss@example.org./p", Destination("https", "example.org.", 443)),
        ("https://bücher.example/p", Destination("https", "xn--bcher-kva.example", 443)),
        ("http://0x7f.1/p", Destination("http", "127.0.0.1", 80)),
        ("https://my_host.example.org/?a=%0A", Destination("https", "my_host.example.org", 443)),
    ],
)
def test_acceptable_urls_lead_somewhere(url: str, destination: Destination) -> None:
    assert parse_destination(url, MIRROR_SCHEMES) == destination


@pytest.mark.parametrize(
    ("words", "urls"),
    [
        (
            "Only allowed schemes are http, https, ssh, git",
            [
                "ftp://h/p",
                "file:///etc/passwd",
                "ext::sh",
                "h/p.git",
                "git@h:p.git",
                "javascript://h",
                "git+ssh://h",
            ],
        ),
        (
            "Username needs to start with an alphanumeric character",
            ["ssh://-oProxyCommand=x@h/p", "https://%2DoX@h/p", "https://_a@h/p"],
        ),
        (
            "Hostname or IP address invalid",
            [
                "ssh://-oProxyCommand=x/p",
                "http:///p",
                "http://.h/p",
                "http://_h/p",
                "http://a%20b/",
                "http://h-!/p",
                "http://%6cocalhost/p",
                "http://a$(b)/p",
            ],
        ),
        (
            "URI is invalid",
            [
                "http://h\n/p",
                "http://h/p\r\nX: y",
                "http://h/a b",
                "ssh://h/p%0Ax",
                "git://h/p%0d%0ahost=x",
                "http://[0:0:0:0:ffff:123.123.123.123]/foo.git",
                "http://[::1/",
                "http://a%0Ab:c@h/p",
                "http://h:99999/",
                "http://h:x/",
                "http://h:0/",
                "http://h\\@i/",
                "http://h\x00/",
                "http://h\u2028/",
            ],
        ),
        ("Host is too long (maximum is 1024 characters)", [f"http://{'a' * 1025}/"]),
    ],
)
def test_unacceptable_urls_are_refused_in_words(words: str, urls: list[str]) -> None:
    for url in urls:
        with pytest.raises(BlockedError) as caught:
            parse_destination(url, MIRROR_SCHEMES)
        assert (url, str(caught.value)) == (url, words)


def test_status_checks_allow_http_and_https_only() -> None:
    with pytest.raises(BlockedError, match=r"^Only allowed schemes are http, https$"):
        parse_destination("ssh://h/p", HTTP_SCHEMES)


@given(st.text())
def test_any_text_is_a_destination_or_refused(text: str) -> None:
    for url in (text, f"http://{text}", f"ssh://{text}/p", f"https://u:{text}@h/p"):
        try:
            destination = parse_destination(url, MIRROR_SCHEMES)
        except BlockedError:
            continue
        assert destination.host.isascii()
        assert not set(destination.host) & set(" /@\\%\n")
