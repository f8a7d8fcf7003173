"""Destinations of outgoing requests: acceptable URLs, refused addresses, and the ones that an instance allows."""

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api_server.outbound.destinations import (
    HTTP_SCHEMES,
    MIRROR_SCHEMES,
    BlockedError,
    Destination,
    is_own_address,
    literal_address,
    parse_destination,
    refusal,
)
from api_server.outbound.policy import AllowList, CheckedUrl, Policy, check_url
from tests.api_server.outbound.resolvers import ScriptedResolver


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


PUBLIC = [
    "1.1.1.1", "203.0.113.7", "172.32.0.1", "100.128.0.1", "2606:4700::1111", "64:ff9b::101:101", "2002:101:101::1",
]  # fmt: skip


def text(address: str) -> str | None:
    return refusal(ipaddress.ip_address(address), lambda own: own == ipaddress.ip_address("203.0.113.99"))


@pytest.mark.parametrize(
    ("words", "addresses"),
    [
        ("Requests to localhost are not allowed", "0.0.0.0 0.1.2.3 :: 203.0.113.99 ::ffff:203.0.113.99"),
        ("Requests to loopback addresses are not allowed", "127.0.0.1 127.255.255.254 ::1 ::ffff:127.0.0.1"),
        (
            "Requests to the local network are not allowed",
            "10.0.0.1 172.16.0.1 172.31.255.255 192.168.1.1 fc00::1 fd00:ec2::254 fec0::1",
        ),
        ("Requests to the link local network are not allowed", "169.254.169.254 fe80::1 fe80::1%eth0"),
        (
            "Requests to the shared address space are not allowed",
            "100.64.0.1 100.127.255.255 100.100.100.200",
        ),
        ("Requests to the limited broadcast address are not allowed", "255.255.255.255"),
        ("Requests to multicast addresses are not allowed", "224.0.0.1 239.1.1.1 ff02::1"),
        ("Requests to reserved addresses are not allowed", "192.0.0.192 198.18.0.1 240.0.0.1"),
    ],
)
def test_addresses_that_are_not_the_public_internet_are_refused(words: str, addresses: str) -> None:
    assert {address: text(address) for address in addresses.split()} == dict.fromkeys(
        addresses.split(), words
    )


@pytest.mark.parametrize("address", PUBLIC)
def test_public_addresses_are_allowed(address: str) -> None:
    assert text(address) is None


@given(st.ip_addresses(v=4))
def test_an_ipv4_address_is_refused_in_every_disguise(address: ipaddress.IPv4Address) -> None:
    bits = int(address)
    disguises = [
        (0xFFFF << 32) | bits,  # mapped
        (0xFFFF << 48) | bits,  # translated
        (0x64FF9B << 96) | bits,  # NAT64
        (0x2002 << 112) | (bits << 80) | 1,  # 6to4
        (0x20010000 << 96) | (0x01010101 << 64) | (bits ^ 0xFFFFFFFF),  # Teredo
    ]
    expected = text(str(address))
    for disguise in disguises:
        assert text(str(ipaddress.IPv6Address(disguise))) == expected


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("::1", "::1"),
        ("2130706433", "127.0.0.1"),
        ("0x7f000001", "127.0.0.1"),
        ("0x7f.1", "127.0.0.1"),
        ("0177.0.0.1", "127.0.0.1"),
        ("127.1", "127.0.0.1"),
        ("127.0.0.1.", "127.0.0.1"),
    ],
)
def test_every_spelling_of_an_address_is_read(host: str, address: str) -> None:
    assert literal_address(host) == ipaddress.ip_address(address)


@pytest.mark.parametrize(
    "host", ["example.org", "1.example", "1and1.com", "a.1x", "", "999999999999", "3.14.1x"]
)
def test_names_are_no_addresses(host: str) -> None:
    assert literal_address(host) is None


def test_the_kernel_knows_our_own_addresses() -> None:
    assert is_own_address(ipaddress.ip_address("127.0.0.1"))
    assert not is_own_address(ipaddress.ip_address("203.0.113.7"))


LOOPBACK = "Requests to loopback addresses are not allowed"
LOCALHOST = "Requests to localhost are not allowed"
LOCAL_NETWORK = "Requests to the local network are not allowed"
NOT_LISTED = "Requests to hosts and IP addresses not on the Allow List are denied"


async def verdict(url: str, policy: Policy | None = None, **answers: list[str]) -> str | None:
    """Return the refusal's text, or None."""
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
