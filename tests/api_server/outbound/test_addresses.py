"""Which addresses are refused, with which words."""

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api_server.outbound.destinations import is_own_address, literal_address, refusal

PUBLIC = [
    "1.1.1.1",
    "203.0.113.7",
    "172.32.0.1",
    "100.128.0.1",
    "2606:4700::1111",
    "64:ff9b::101:101",
    "2002:101:101::1",
]


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
