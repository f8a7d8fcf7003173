"""What an instance allows beyond the public internet."""

import ipaddress

import pytest

from api_server.outbound.destinations import (
    MIRROR_SCHEMES,
    BlockedError,
    Destination,
    parse_destination,
)
from api_server.outbound.policy import AllowList, CheckedUrl, Policy, check_url
from tests.api_server.outbound.resolvers import ScriptedResolver

LOOPBACK = "Requests to loopback addresses are not allowed"
LOCALHOST = "Requests to localhost are not allowed"
LOCAL_NETWORK = "Requests to the local network are not allowed"
NOT_LISTED = "Requests to hosts and IP addresses not on the Allow List are denied"


async def verdict(url: str, policy: Policy | None = None, **answers: list[str]) -> str | None:
    """The refusal's text, or None."""
    resolver = ScriptedResolver(**{name: [addresses] for name, addresses in answers.items()})
    try:
        await check_url(url, policy or Policy(), resolver, schemes=MIRROR_SCHEMES)
    except BlockedError as problem:
        return str(problem)
    return None


async def test_all_addresses_of_a_name_are_checked_and_reported() -> None:
    resolver = ScriptedResolver(a=[["203.0.113.7", "2606:4700::1111"]])
    checked = await check_url("https://A.example.org/x", Policy(), resolver, schemes=("https",))
    addresses = (ipaddress.ip_address("203.0.113.7"), ipaddress.ip_address("2606:4700::1111"))
    assert checked == CheckedUrl(Destination("https", "a.example.org", 443), addresses)


async def test_one_bad_address_among_good_ones_blocks() -> None:
    assert await verdict("http://a.example.org", a=["203.0.113.7", "10.0.0.1"]) == LOCAL_NETWORK


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://127.0.0.1/", LOOPBACK),
        ("http://2130706433/", LOOPBACK),
        ("http://[::ffff:127.0.0.1]/", LOOPBACK),
        ("http://localhost/", LOCALHOST),
        ("http://LOCALHOST./", LOCALHOST),
        ("http://x.localhost/", LOCALHOST),
        ("http://0/", LOCALHOST),
        ("http://unknown.example.org/", "Host cannot be resolved or invalid"),
        ("http://203.0.113.7/", None),
    ],
)
async def test_hosts_are_judged_by_what_they_are(url: str, words: str | None) -> None:
    assert await verdict(url) == words


async def test_the_setting_for_local_requests_allows_all_addresses_but_not_unknown_names() -> None:
    policy = Policy(allow_local_requests=True)
    assert await verdict("http://localhost.example.org/", policy, localhost=["127.0.0.1"]) is None
    assert await verdict("http://[::1]/", policy) is None
    assert await verdict("http://unknown.example.org/", policy) == "Host cannot be resolved or invalid"
    assert await verdict("ftp://127.0.0.1/", policy) == "Only allowed schemes are http, https, ssh, git"


async def test_the_instance_itself_is_allowed_at_its_scheme_host_and_port_only() -> None:
    own = parse_destination("http://forge.example.org:8080", ("http",))
    policy = Policy(instance=own)
    for url, words in {
        "http://forge.example.org:8080/g/p.git": None,
        "http://forge.example.org/g/p.git": LOOPBACK,
        "https://forge.example.org:8080/": LOOPBACK,
        "http://other.example.org:8080/": LOOPBACK,
    }.items():
        assert await verdict(url, policy, forge=["127.0.0.1"], other=["127.0.0.1"]) == words, url


@pytest.mark.parametrize(
    ("entry", "url", "words"),
    [
        ("127.0.0.1", "http://127.0.0.1:81/", None),
        ("127.0.0.1", "http://[::ffff:127.0.0.1]/", None),
        ("127.0.0.1", "http://127.0.0.2/", LOOPBACK),
        ("127.0.0.1:81", "http://127.0.0.1:81/", None),
        ("127.0.0.1:81", "http://127.0.0.1/", LOOPBACK),
        ("10.0.0.0/8", "http://a.example.org/", None),
        ("10.0.0.0/8:80", "https://a.example.org/", LOCAL_NETWORK),
        ("[fd00::1]:443", "https://[fd00::1]/", None),
        ("[fd00::1]:443", "http://[fd00::1]/", LOCAL_NETWORK),
        ("fd00::/8", "http://[fd00::1]/", None),
        ("a.example.org", "http://a.example.org:81/", None),
        ("A.Example.org:81", "http://a.example.org:81/", None),
        ("a.example.org:81", "http://a.example.org/", LOCAL_NETWORK),
        ("example.org", "http://a.example.org/", LOCAL_NETWORK),
        ("gone.example.org", "http://gone.example.org/", None),
        ("localhost:81", "http://localhost:81/", None),
    ],
)
async def test_the_allow_list_opens_exactly_what_it_names(entry: str, url: str, words: str | None) -> None:
    assert await verdict(url, Policy(allow_list=AllowList.parse([entry])), a=["10.0.0.1"]) == words


async def test_an_allowed_address_does_not_excuse_another_one_of_the_same_name() -> None:
    policy = Policy(allow_list=AllowList.parse(["10.0.0.1"]))
    assert await verdict("http://a.example.org/", policy, a=["10.0.0.1", "10.0.0.2"]) == LOCAL_NETWORK


async def test_deny_all_leaves_the_list_and_the_instance() -> None:
    own = Destination("http", "forge.example.org", 80)
    policy = Policy(own, deny_all_but_allowed=True, allow_list=AllowList.parse(["203.0.113.7"]))
    assert await verdict("http://203.0.113.7/", policy) is None
    assert await verdict("http://forge.example.org/", policy) is None
    assert await verdict("http://203.0.113.8/", policy) == NOT_LISTED
    assert await verdict("http://localhost/", policy) == NOT_LISTED


@pytest.mark.parametrize(
    "entry", ["*.example.org", "http://h", "a b", "h:0", "h:99999", "h:x", "10.0.0.0/33", "1.2.3"]
)
def test_an_entry_that_means_nothing_is_refused(entry: str) -> None:
    with pytest.raises(ValueError, match="is not an address, a network or a domain"):
        AllowList.parse(["127.0.0.1", entry])


def test_blank_entries_are_passed_over() -> None:
    assert AllowList.parse(["", "  "]) == AllowList()
