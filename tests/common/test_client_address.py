"""Audit events and limits by address are about the client, not about the proxy in front of the server."""

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.client_address import address_behind, networks, one_client
from tests.support.forge import SharedForges

PROXIES = networks(["10.0.0.0/8", "192.0.2.7", "2001:db8::/32"])
ADDRESSES = st.ip_addresses().map(str)
TRUSTED = st.ip_addresses(network="10.0.0.0/8").map(str)


@pytest.mark.parametrize(
    ("peer", "forwarded_for", "address"),
    [
        ("10.0.0.1", [], "10.0.0.1"),
        ("10.0.0.1", ["198.51.100.1"], "198.51.100.1"),
        ("10.0.0.1", ["203.0.113.9, 198.51.100.1"], "198.51.100.1"),
        ("10.0.0.1", ["203.0.113.9", "198.51.100.1, 192.0.2.7"], "198.51.100.1"),
        ("::ffff:10.0.0.1", ["198.51.100.1"], "198.51.100.1"),
        ("2001:db8::1", [" 2001:DB9::1 "], "2001:DB9::1"),
        ("198.51.100.5", ["203.0.113.9"], "198.51.100.5"),
        ("192.0.2.8", ["203.0.113.9"], "192.0.2.8"),
        ("10.0.0.1", ["unknown"], "10.0.0.1"),
        ("10.0.0.1", ["198.51.100.1, <script>"], "10.0.0.1"),
        ("10.0.0.1", [""], "10.0.0.1"),
        ("10.0.0.1", ["10.0.0.3, 10.0.0.2"], "10.0.0.3"),
    ],
)
def test_the_last_address_that_no_proxy_has_is_the_clients(
    peer: str, forwarded_for: list[str], address: str
) -> None:
    assert address_behind(PROXIES, peer, forwarded_for) == address


@pytest.mark.parametrize(
    ("address", "counted"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::9", "2001:db8:1:2::/64"),
        ("", ""),
    ],
)
def test_limits_count_one_customers_addresses_together(address: str, counted: str) -> None:
    assert one_client(address) == counted


@given(claimed=st.lists(ADDRESSES | st.text()), client=ADDRESSES, proxies=st.lists(TRUSTED, min_size=1))
def test_a_client_cannot_choose_its_address(claimed: list[str], client: str, proxies: list[str]) -> None:
    """Whatever it sends as `X-Forwarded-For`, the first trusted proxy adds its real address behind that."""
    if any(ipaddress.ip_address(client) in network for network in PROXIES):
        return
    *between, peer = proxies
    assert address_behind(PROXIES, peer, [", ".join(claimed), ", ".join([client, *between])]) == client


@pytest.mark.parametrize(("trusted", "address"), [(["127.0.0.1"], "198.51.100.1"), ([], "127.0.0.1")])
async def test_an_audit_event_has_the_clients_address(
    shared_forge: SharedForges, trusted: list[str], address: str
) -> None:
    forge = await shared_forge(trusted_proxies=trusted)
    made = await forge.root.post(
        "/groups", {"name": "behind", "path": "behind"}, headers={"X-Forwarded-For": "198.51.100.1"}
    )
    events = (await forge.root.get(f"/groups/{made.body['id']}/audit_events")).body
    assert {event["details"]["ip_address"] for event in events} == {address}
