"""What the document reserves to a tier or an offering is refused below it (decision D1)."""

from collections.abc import Callable
from typing import Any, get_args

import pytest

from api_server.settings import Tier
from tests.support.forge import Forge
from tests.support.route_table import ROUTES, name_of, path_of, required

TIERS: tuple[Tier, ...] = get_args(Tier)
RESERVED = [route for route in ROUTES if route.feature]


@pytest.mark.parametrize("tier", TIERS)
async def test_features_answer_403_below_their_tier(new_forge: Callable[..., Any], tier: Tier) -> None:
    async with new_forge(tier=tier) as forge:
        for route in RESERVED:
            feature = route.feature
            if feature is None or route.access.who == "job":
                continue
            answer = await _call(forge, route)
            refused = {"message": f"403 Forbidden - {feature.name} is not available on the {tier} tier"}
            below = TIERS.index(tier) < TIERS.index(feature.tier)
            assert ((answer.status, answer.body) == (403, refused)) == below, name_of(route)


async def test_features_answer_403_where_they_do_not_exist(new_forge: Callable[..., Any]) -> None:
    async with new_forge(offering="saas") as forge:
        missing = [r for r in RESERVED if r.feature and "saas" not in r.feature.offerings]
        for route in missing:
            answer = await _call(forge, route)
            assert answer.status == 403, name_of(route)
            assert "is not available on the saas offering" in answer.body["message"]
        paths = {route.path for route in missing}
        assert {"/audit_events", "/audit_events/{id}"} <= paths


async def _call(forge: Forge, route):
    return await forge.root.request(route.method, path_of(route, {}), json=required(route))
