"""What the document reserves to a tier or an offering is refused below it (decision D1)."""

from typing import get_args

import pytest

from api_server.settings import Tier
from api_server.web.routes import Route
from tests.support.deviations import Deviations
from tests.support.forge import Answer, Forge, SharedForges
from tests.support.route_table import ROUTES, name_of, path_of, required

TIERS: tuple[Tier, ...] = get_args(Tier)
RESERVED = [route for route in ROUTES if route.feature]


@pytest.mark.parametrize("tier", TIERS)
async def test_features_answer_403_below_their_tier(shared_forge: SharedForges, tier: Tier) -> None:
    forge, deviations = await shared_forge(tier=tier), Deviations()
    for route in RESERVED:
        feature = route.feature
        if feature is None or route.access.who == "job":
            continue
        answer = await _call(forge, route)
        refused = {"message": f"403 Forbidden - {feature.name} is not available on the {tier} tier"}
        below = TIERS.index(tier) < TIERS.index(feature.tier)
        with deviations.of(name_of(route)):
            assert ((answer.status, answer.body) == (403, refused)) == below, answer
    assert not deviations, deviations.report


async def test_features_answer_403_where_they_do_not_exist(shared_forge: SharedForges) -> None:
    forge, deviations = await shared_forge(offering="saas"), Deviations()
    missing = [r for r in RESERVED if r.feature and "saas" not in r.feature.offerings]
    for route in missing:
        answer = await _call(forge, route)
        with deviations.of(name_of(route)):
            assert answer.status == 403
            assert "is not available on the saas offering" in answer.body["message"]
    assert not deviations, deviations.report
    assert {"/audit_events", "/audit_events/{id}"} <= {route.path for route in missing}


async def _call(forge: Forge, route: Route) -> Answer:
    """Where the tier has the feature, nothing is there that other tests of the server could miss afterwards."""
    return await forge.root.request(route.method, path_of(route, {}, 999_999_999), json=required(route))
